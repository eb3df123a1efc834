"""Reasoning and tool calls in generated text. Owner: the core that detokenizes the stream.

`base.make_parser` gives one parser per stream; `formats` describes the families, `think` and
`calls` are the two engines that read the descriptions. Standard library only.
"""
