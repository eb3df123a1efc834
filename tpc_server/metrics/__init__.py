"""The frontend's metrics: recorded per core in published words, merged when they are asked for.

Owner: see each module.
"""
