#!/bin/sh
# Java: compiled and run by the JVM on our malloc: its own native memory, direct buffers, Deflater and Inflater
# (zlib through JNI), many short threads, and class loading.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need javac default-jdk-headless
need java default-jdk-headless
prove_first java
ours javac -J-Xmx400m -d classes "$programs/Exercise.java" || fail "javac"
prove_ours javac
ours java -Xmx400m -XX:MaxDirectMemorySize=300m -XX:NativeMemoryTracking=summary -cp classes Exercise >output.txt 2>&1 ||
  { tail -n 40 output.txt; fail "the program"; }
[ "$(tail -n 1 output.txt)" = "all checks passed" ] || { tail -n 40 output.txt; fail "the program did not finish"; }
prove_ours java
