function __drover_complete
    set -l words (commandline -opc) (commandline -ct)
    drover complete -- $words[2..-1] 2>/dev/null
end
complete -c drover -f -a '(__drover_complete)'
complete -c drover -s f -l filename -r -F
