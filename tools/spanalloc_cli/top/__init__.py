"""`spanalloc top`: what the heap of a process holds, read from outside: of one that runs, or of a core file.

memory      reads another process's memory
core        reads a core file
objects     programs and libraries there: notes, the loader's order
inspection  the record by which the heap's own records are found (src/engine/inspection.hpp)
heap        walks these, and counts
heaps       the same of first-class heaps
blocks      tells of one address: its block, its span, its neighbours; for gdb (gdb_commands.py)
process     what /proc tells, and which thread is which
look        one look at a process: all of the above, for tables and --json
screen      tables
live        the terminal: a table that goes on, keys, the program that is watched
"""
