"""`spanalloc doctor`: what costs memory or time on this machine, in a process, or in a program that it runs.

files       the one door to /proc, /sys and programs' files
findings    what a finding is, and the topics there are
elf cgroups process options preload      facts
machine bounds environment program       findings, each from facts
classes heaps                            findings from what top sees of a process's heap
watch       runs a program and looks at it
report      prints findings
"""
