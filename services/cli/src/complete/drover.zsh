#compdef drover
_drover() {
    local -a found
    found=("${(@f)$(drover complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    found=("${(@)found:#}")
    if (( $#found == 0 )); then
        # Where nothing is known, a file is meant.
        _files
    elif [[ $found[1] == */ ]]; then
        compadd -Q -S '' -- "${found[@]}"
    else
        compadd -Q -- "${found[@]}"
    fi
}
if [ "$funcstack[1]" = "_drover" ]; then
    _drover "$@"
else
    compdef _drover drover
fi
