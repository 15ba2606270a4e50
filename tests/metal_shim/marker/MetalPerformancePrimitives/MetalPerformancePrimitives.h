// Present only so that the preprocessor finds it: the library comes with generate.py's output.
