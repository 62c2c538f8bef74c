"""What a kernel of the pipeline does before all else (`PYTHONSTARTUP`, set by the Snakefile).

Looking through the objects of torch and matplotlib for garbage, while they are imported, takes
longer than what it frees. `notebook.obtain` begins again before it trains.
"""

__import__("gc").disable()  # a name of its own here would be one of the notebook's
