"""`streamdump browse`: a terminal interface on the records of captures, or of an interface.

listing.py   a list of any length on a terminal
places.py    the four places: findings, conversations, messages, fields with bytes
screen.py    what is on the screen
asking.py    the line to type into
app.py       what the keys do
saving.py    what is counted and written to files
"""
