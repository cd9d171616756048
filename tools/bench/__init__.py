"""What a proxied request costs: warmroute beside other proxies, interleaved in one run on one machine.

CPU per request (user and system time of the proxy's whole process tree over the requests it served) is the first
figure, because it does not move with the load generator. Absolute values move from run to run with the machine's mood;
only ratios of the same round mean anything, so every round measures every contender and ratios are taken per round.

``profiles.py`` says what is measured, ``targets.py`` what is to be reached, ``contenders.py`` and ``proxies.py`` how
each proxy is set up, ``paced.c`` is the load, ``page.py`` writes docs/benchmarks/.
"""
