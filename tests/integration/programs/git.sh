#!/bin/sh
# git: a repository of 300 commits, then log, blame, gc, fsck and a clone; checked again by git on libc's malloc.
set -eu
# shellcheck source=tests/integration/programs/lib.sh
. "$(dirname "$0")/lib.sh"
need git git
prove_first git
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE GIT_OBJECT_DIRECTORY  # set where a hook runs the tests
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org \
  GIT_COMMITTER_NAME=c GIT_COMMITTER_EMAIL=c@example.org GIT_PAGER=cat
ours git init -q -b main repository
cd repository
git config gc.auto 0 # nothing in the background
for file in 1 2 3 4 5 6 7 8 9 10; do seq "$((file * 1000))" "$((file * 1000 + 2000))" >"file$file.txt"; done
ours git add .
ours git commit -q -m start
for commit in $(seq 1 300); do
  file=file$((commit % 10 + 1)).txt
  echo "line of commit $commit" >>"$file"
  sed -i "$((commit * 3))s/\$/ changed by $commit/" "$file"
  ours git commit -q -a -m "commit $commit, in $file"
done
[ "$(ours git log --oneline | wc -l)" = 301 ] || fail "git log does not list 301 commits"
ours git log -p --stat >/dev/null || fail "git log -p"
[ "$(ours git blame file5.txt | grep -c 'line of commit')" = 30 ] || fail "git blame"
before=$(git rev-parse 'HEAD^{tree}')
# Threads, however few CPUs there are.
ours git -c pack.threads=4 gc -q --aggressive --prune=now || fail "git gc"
ours git fsck --full --strict >fsck.txt 2>&1 || { cat fsck.txt; fail "git fsck"; }
ours git clone -q --no-local . ../clone || fail "git clone"
git fsck --full --strict >/dev/null 2>&1 || fail "git fsck on libc's malloc finds the repository broken"
[ "$(git -C ../clone rev-parse 'HEAD^{tree}')" = "$before" ] || fail "the clone has another tree"
rm -f fsck.txt
diff -r -x .git . ../clone || fail "the clone's files differ"
prove_ours git
