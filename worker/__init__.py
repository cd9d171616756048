"""The inference worker: it loads models, proves them warm by a real run, serves them and reports what it holds.

It never imports ``sidecar``; of ``router`` it uses the vocabulary (``router.model``) and the schema of the shared state
(``router.wire``). What runs when stands in ``worker/process.py``; what may be configured in ``worker/options.py``.
"""
