"""The model contract: what training exports, and what checks, predictions and the server rely on.

Export format, columns of rows, answers, explanations, and pushed versions on disk. Needs no trainer and no server.
"""
