"""Reports as one HTML page that holds all it needs: nothing is loaded from elsewhere, and captured text is text only (`page`).

`sequence_diagrams` keeps the handshakes of conversations that failed, `charts` makes drawings of durations.
"""
