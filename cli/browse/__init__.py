"""`streamdump browse`: a terminal interface on the records of captures, or of an interface.

listing.py   a list of any length on a terminal
places.py    the four places: findings, conversations, messages, fields with bytes
screen.py    the screen
asking.py    the line to type into
app.py       what the keys do
saving.py    counts, and files written
"""
