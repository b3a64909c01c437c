#!/bin/bash
#SBATCH --job-name=qdl
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=01:00:00
#
# One run on a Slurm cluster: a frontend on the first node, an accelerator on each other node.
#
#     sbatch --nodes=5 slurm.sh FRONTEND.yaml ACCELERATOR.yaml [FRONTEND'S OPTIONS]
#     sbatch --nodes=5 --gpus-per-node=8 slurm.sh front.yaml acc.yaml --scenario server
#
# The script writes `node`, `token_file`, `control` and `accelerators`: the two files have all other
# keys. Paths in them are absolute. `@ADDRESS@` in both becomes the node's IPv4 address, as in
# `nics: [{listen: "@ADDRESS@:7410"}]` and `nics: [{address: "@ADDRESS@"}]`; `match: "mlx5_*"` with
# `ofi` or RDMA needs none.
#
# Everything goes to the folder qdl-JOB of the working directory, which all nodes must share: the
# configurations, the accelerators' logs, and the run folder `run`. Exit code: the frontend's.
# RDMA needs unlimited locked memory: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf.
#
# QDL_BIN: folder of both programs, default: from PATH. QDL_PORT: control port (7400).
# QDL_READY_S: limit for loading the models (600). QDL_INTERFACE: interface with the nodes' addresses,
# as ib0; default: the address of the node's name.
set -euo pipefail
if [ "$#" -lt 2 ]; then
    echo "usage: [QDL_INTERFACE=ib0] sbatch slurm.sh FRONTEND.yaml ACCELERATOR.yaml [OPTIONS]" >&2
    exit 2
fi
frontend=$1 accelerator=$2
shift 2
bin=${QDL_BIN:+$QDL_BIN/}
port=${QDL_PORT:-7400}
folder=$PWD/qdl-$SLURM_JOB_ID
mkdir "$folder"
mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "${#hosts[@]}" -lt 2 ]; then
    echo "one frontend and one accelerator need two nodes: sbatch --nodes=2" >&2
    exit 2
fi

steps=()
end() {
    # srun passes SIGTERM on to its task.
    for step in "${steps[@]}"; do kill -TERM "$step" 2>/dev/null || true; done
    for step in "${steps[@]}"; do wait "$step" || true; done
    steps=()
    rm -f "$folder/token"
}
trap end EXIT
trap 'exit 130' INT TERM

# step HOST COMMAND...: runs a command on one node with all its cores. SIGTERM ends srun itself.
step() {
    local host=$1
    shift
    exec srun --nodes=1 --ntasks=1 --nodelist="$host" --cpus-per-task="${SLURM_CPUS_ON_NODE:-1}" \
        --cpu-bind=none --overlap --kill-on-bad-exit "$@"
}

# As `qdl token` makes it; the node of this script need not have the programs.
(umask 077 && od -A n -v -t x1 -N 32 /dev/urandom | tr -d ' \n' >"$folder/token")
# find_address HOST: sets `address`, or ends the job.
find_address() {
    local look=(getent ahostsv4 "$1")
    if [ -n "${QDL_INTERFACE:-}" ]; then
        look=(step "$1" ip -4 -oneline address show dev "$QDL_INTERFACE")
    fi
    # The first of `1.2.3.4 STREAM name` or of `2: ib0 inet 1.2.3.4/24 ...`.
    address=$("${look[@]}" | grep -oE '([0-9]+\.){3}[0-9]+' | head -n 1) || true
    if [ -z "$address" ]; then
        echo "$1 has no IPv4 address${QDL_INTERFACE:+ on $QDL_INTERFACE}" >&2
        exit 2
    fi
}

find_address "${hosts[0]}"
own=$address
list=
for host in "${hosts[@]:1}"; do
    find_address "$host"
    {
        printf 'node: %s\ntoken_file: token\n' "$host"
        printf 'control: {listen: "%s:%s"}\n' "$address" "$port"
        sed "s/@ADDRESS@/$address/g" "$accelerator"
    } >"$folder/$host.yaml"
    list+="  - control: \"$address:$port\""$'\n'
    step "$host" "${bin}accelerator" --config "$folder/$host.yaml" >"$folder/$host.log" 2>&1 &
    steps+=($!)
done
{
    printf 'node: %s-frontend\ntoken_file: token\naccelerators:\n%s' "${hosts[0]}" "$list"
    sed "s/@ADDRESS@/$own/g" "$frontend"
} >"$folder/frontend.yaml"

until=$((SECONDS + ${QDL_READY_S:-600}))
for at in "${!steps[@]}"; do
    host=${hosts[at + 1]}
    until grep -q '^ready:' "$folder/$host.log"; do
        if ! kill -0 "${steps[at]}" 2>/dev/null || ((SECONDS > until)); then
            echo "the accelerator on $host is not ready: $folder/$host.log ends with" >&2
            tail -n 5 "$folder/$host.log" >&2
            exit 2
        fi
        sleep 0.2
    done
done

rc=0
(step "${hosts[0]}" "${bin}frontend" --config "$folder/frontend.yaml" \
    --output "$folder/run" "$@") || rc=$?
end
echo "exit code $rc, results in $folder/run"
exit "$rc"
