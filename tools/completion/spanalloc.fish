# Completion of the `spanalloc` command for fish. The command itself says what fits (click's protocol: "plain,WORD" and a
# tab before its help; where there is none, names of files are completed).
function __spanalloc_complete
    set -l found (env COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct) _SPANALLOC_COMPLETE=complete_fish \
        (commandline -opc)[1] 2>/dev/null | string replace -rf '^plain,' '')
    if set -q found[1]
        string join \n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c spanalloc -f -a '(__spanalloc_complete)'
