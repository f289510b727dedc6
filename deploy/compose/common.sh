# What up, down and drover have in common. Sourced by them.
# shellcheck shell=bash
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -1)

export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-drover}
export ORCHESTRATOR_ADDRESS=${ORCHESTRATOR_ADDRESS:-127.0.0.1}
export ORCHESTRATOR_PORT=${ORCHESTRATOR_PORT:-7400}
export IMAGE_PREFIX=${IMAGE_PREFIX:-drover}
export IMAGE_TAG=${IMAGE_TAG:-latest}
# Absolute, since compose takes paths from where its file is and people from where they are.
CERTS_DIR=$(realpath -m "${CERTS_DIR:-$here/certs}")
export CERTS_DIR
PROFILES=(kubernetes aws digitalocean observability)

say() { printf '%s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

need_docker() {
    command -v docker >/dev/null || die "docker is not installed: https://docs.docker.com/engine/install (Debian: apt-get install docker.io)"
    local why
    why=$(docker version 2>&1 >/dev/null) || die "the Docker daemon does not answer: $(tail -1 <<<"$why")"
}

# Compose, whichever there is; COMPOSE=docker-compose asks for the old one.
find_compose() {
    if [ -n "${COMPOSE:-}" ]; then
        read -ra compose <<<"$COMPOSE"
    elif docker compose version >/dev/null 2>&1; then
        compose=(docker compose)
    elif command -v docker-compose >/dev/null; then
        compose=(docker-compose)
    else
        die "docker compose is not installed: https://docs.docker.com/compose/install (Debian: apt-get install docker-compose)"
    fi
    compose+=(--project-directory "$here" -f "$here/docker-compose.yaml")
}
# With three orchestrators.
compose_ha() { compose+=(-f "$here/ha.yaml"); }

# container SERVICE: its id, running or not; nothing if there is none.
container() {
    docker ps -aq --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
        --filter "label=com.docker.compose.service=$1" --filter label=com.docker.compose.oneoff=False | head -1
}

# The command line in a container beside the servers, as the administrator. Standard input and the current directory are
# its own, so that `-f -` and `-f FILE` work.
drover() {
    local terminal=()
    [ ! -t 0 ] || [ ! -t 1 ] || terminal=(-t)
    docker run --rm -i "${terminal[@]}" --network "${COMPOSE_PROJECT_NAME}_default" --user "$(id -u):$(id -g)" \
        --read-only --cap-drop ALL --security-opt no-new-privileges \
        -v "$CERTS_DIR/ca.pem:/certs/ca.pem:ro" -v "$CERTS_DIR/admin.pem:/certs/admin.pem:ro" \
        -v "$CERTS_DIR/admin.key:/certs/admin.key:ro" -v "$PWD:/work:ro" -w /work \
        -e DROVER_SERVER=https://orchestrator:7400 -e DROVER_CA=/certs/ca.pem \
        -e DROVER_CERT=/certs/admin.pem -e DROVER_KEY=/certs/admin.key -e NO_COLOR -e TERM \
        "$IMAGE_PREFIX/cli:$IMAGE_TAG" "$@"
}
