_drover() {
    local found
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("$found")
    done < <(drover complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    # The name of a group or node follows.
    if [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == */ ]]; then
        compopt -o nospace
    fi
}
# Where nothing is known, a file is meant.
complete -o default -F _drover drover
