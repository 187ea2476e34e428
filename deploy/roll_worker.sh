#!/bin/sh
# A deploy of gpu_worker that stops no starts: the next container takes jobs before the last one drains. Arguments are
# those of `docker compose`:
#   docker compose -f deploy/compose.yaml build gpu_worker && deploy/roll_worker.sh -f deploy/compose.yaml
set -eu
service=gpu_worker
old=$(docker compose "$@" ps --quiet "$service")
now=$(printf '%s\n' "$old" | grep --count . || true)
# --wait: until the new ones are healthy; if they do not become it, the old ones go on and this ends with an error
docker compose "$@" up --detach --no-deps --no-recreate --wait --scale "$service=$((now > 0 ? now * 2 : 1))" "$service"
for container in $old; do # SIGTERM, and SIGKILL only after its stop_grace_period
    docker stop "$container" >/dev/null &
done
wait
for container in $old; do
    docker rm "$container" >/dev/null
done
