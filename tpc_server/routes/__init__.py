"""Which request is answered how, on one ingress core. Owner: the core's thread.

`table.py` declares the routes, `router.py` finds the handler of a request, the other modules are
the handlers. A handler answers at once through the ingress stage, or opens a group: one message to
the detok stage that will render the answer, then the jobs to the tokenize stage.
"""
