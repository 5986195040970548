"""`streamdump mcp`: tools for coding assistants, over the Model Context Protocol.

answers.py    an answer: bounded, what was captured marked as such, and what was left out
captures.py   which captures may be read, and those that are open
tools.py      the nine tools
server.py     the tools over standard input and output
"""
