# Completion of the `spanalloc` command for bash. The command itself says what fits (click's protocol: "plain,WORD" is a
# word; where there is none, -o default completes names of files).
_spanalloc() {
  local answer
  COMPREPLY=()
  while IFS= read -r answer; do
    if [[ $answer == plain,* ]]; then COMPREPLY+=("${answer#plain,}"); fi
  done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _SPANALLOC_COMPLETE=complete_bash "$1" 2>/dev/null)
}
complete -o default -F _spanalloc spanalloc
