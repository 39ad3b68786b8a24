"""What the benchmarks of the families share: child processes in turn, memory, peers, tables.

A benchmark is a script that lists `Way`s of loading the same samples. Each way lives in a process of its own,
which opens, delivers a first batch, and then takes part in rounds: in every round each way runs alone for a
moment, in turning order. Ratios are medians over rounds of two rates of the same round, so that other load
on the machine cancels.
"""
