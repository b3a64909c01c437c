# The release programs over soft-RoCE, for the guest:
#
#   cargo build --release -p frontend -p accelerator
#   QDL_GUEST_SECONDS=900 cargo xtask soft-roce -- bash xtask/soft-roce/runs.sh
#
# One line for each thing shown, and exit status 1 where one does not hold. What each run wrote lies in /mnt/out/NAME.
. xtask/soft-roce/pair.sh
out=/mnt/out
failed=0
configs=$(mktemp -d)

# holds TEXT COMMAND...: says whether the command succeeds
holds() {
    local text=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "holds: $text"; else echo "FAILS: $text"; failed=1; fi
}

# accelerator NAME CONFIG: starts it and waits until it is ready
accelerator() {
    target/release/accelerator --config "$2" >$out/$1.accelerator.log 2>&1 &
    acc=$!
    local try
    for try in $(seq 300); do grep -q ready: $out/$1.accelerator.log && return; sleep 0.1; done
    echo "FAILS: $1: the accelerator is not ready"; failed=1
}

ended() { kill $acc 2>/dev/null; wait $acc 2>/dev/null; }

# frontend NAME CONFIG ARGUMENTS...: its exit status is in $status
frontend() {
    local name=$1 config=$2
    shift 2
    timeout 200 target/release/frontend --config "$config" --output $out/$name "$@" >$out/$name.log 2>&1
    status=$?
}

# digest PREFIX FRONTEND-NICS ACCELERATOR-NICS [DISTRIBUTION] [COUNT]: a pair of configurations
digest() {
    local sizes="distribution: log_uniform, min_bytes: 1"
    [ "${4:-log_uniform}" = fixed ] && sizes="distribution: fixed"
    cat >$configs/$1-accelerator.yaml <<YAML
node: accelerator
control: {listen: 127.0.0.1:7900}
model: {name: digest, max_input_bytes: 150528}
engine: {kind: digest, max_batch: 64, max_delay_us: 200}
nics:
$3
memory_mib: 512
YAML
    cat >$configs/$1-frontend.yaml <<YAML
node: frontend
model:
  name: digest
  inputs: [{name: input, dtype: u8, shape: [150528], ragged: true}]
  output: {name: output, dtype: u8, shape: [8]}
dataset: {kind: random, $sizes, count: ${5:-2048}, max_bytes: 150528, seed: 7}
verify: digest
accelerators: [{control: 127.0.0.1:7900}]
nics:
$2
loadgen:
  scenario: offline
  settings: {min_duration_ms: 1000, offline_expected_qps: 1000}
YAML
}

# value FILE KEY [SIDE]: a total of the connections, from summary.json
value() { sed -n '/"connections_total"/,$p' $out/$1/summary.json | sed -n "/\"${3:-tx}\"/,\$p" | grep -m1 "\"$2\"" | tr -dc 0-9; }

# hw COUNTER: of all devices together
hw() { cat /sys/class/infiniband/*/ports/1/hw_counters/$1 | awk '{n += $1} END {print n}'; }

show() { # NAME
    echo "       $1: connections lost $(grep -c 'connection .* lost' $out/$1.log), duplicate requests seen by the devices $(hw duplicate_request), out of order $(hw out_of_seq_request)"
    echo "       $1: writes $(value $1 writes), work requests $(value $1 work_requests), doorbells $(value $1 doorbells), signaled $(value $1 signaled)," \
        "inline $(value $1 inline), copies $(value $1 copies), CQEs in $(value $1 cqes rx), CQ events $(value $1 cq_events rx)"
}

digits() {
    accelerator ib configs/soft-roce/accelerator.yaml
    frontend accuracy configs/soft-roce/frontend.yaml --scenario offline --mode accuracy
    holds "digits over ib: the accuracy run ends with 0" [ $status = 0 ]
    frontend server configs/soft-roce/frontend.yaml --scenario server --mode performance --duration-s 5
    holds "digits over ib: a valid Server run" [ $status = 0 ]
    show server
    frontend offline configs/soft-roce/frontend.yaml --scenario offline --mode performance --duration-s 5
    holds "digits over ib: a valid Offline run" [ $status = 0 ]
    show offline
    ended
    accelerator tcp configs/demo/accelerator.yaml
    frontend accuracy-tcp configs/demo/frontend.yaml --scenario offline --mode accuracy
    ended
    holds "digits over ib: the same answers, byte for byte, as over tcp" \
        cmp $out/accuracy/mlperf_log_accuracy.json $out/accuracy-tcp/mlperf_log_accuracy.json
}

# Two NICs with four queue pairs each, at once; sizes of every magnitude.
two_nics() {
    # An emulated machine keeps an acknowledgement waiting for long: 67 ms, the default, would be taken for a loss.
    local four='queue_pairs: 4, slots: 32, timeout: 18'
    digest two "  - {device: rxa, $four}
  - {device: rxb, $four}" "  - {device: rxb, timeout: 18}
  - {device: rxa, timeout: 18}"
    accelerator two $configs/two-accelerator.yaml
    frontend two $configs/two-frontend.yaml --samples "${1:-100000}"
    holds "${1:-100000} samples, two NICs, four queue pairs each: every digest its own" [ $status = 0 ]
    show two
    ended
}

# Images of 150,528 bytes, whole and split; the device's own counter of packets confirms the second.
images() {
    local split name
    for split in never 8192; do
        name=images-$split
        digest $name "  - {device: rxa, queue_pairs: 1, slots: 128, timeout: 18, adaptive_routing: {split_above: $split}}" \
            "  - {device: rxb, timeout: 18}" fixed 64
        # Slow, so that the link keeps up: then answers leave in large batches, as a GPU's do, and what is answered together is
        # replaced together.
        sed -i 's/max_batch: 64, max_delay_us: 200/max_batch: 64, max_delay_us: 200000, delay_us: 700000/' $configs/$name-accelerator.yaml
        accelerator $name $configs/$name-accelerator.yaml
        frontend $name $configs/$name-frontend.yaml --samples 2000
        holds "$name: every digest its own" [ $status = 0 ]
        show $name
        local requests=$(value $name work_requests)
        # Echoes and the goodbye are work requests too.
        holds "$name: at least 16 work requests for each doorbell" [ "$requests" -ge $((16 * $(value $name doorbells))) ]
        holds "$name: at most one in 64 signaled, goodbyes apart" [ "$requests" -ge $((64 * ($(value $name signaled) - 1))) ]
        holds "$name: at most one CQ event for 16 completions" [ "$(value $name cqes rx)" -ge $((16 * $(value $name cq_events rx))) ]
        holds "$name: no copy" [ "$(value $name copies)" = 0 ]
        ended
    done
    local whole=$(value images-never work_requests) split=$(value images-8192 work_requests) writes=$(value images-8192 writes)
    holds "one work request for each whole sample" [ "$whole" -le $(($(value images-never writes) + $(value images-never control) + 2)) ]
    holds "two for each split one" [ "$split" -ge $((2 * writes)) -a "$split" -le $((2 * writes + $(value images-8192 control) + 2)) ]
}

# During a run of some seconds, COMMAND; the frontend's exit status must be the one given.
during() { # NAME FRONTEND-NICS ACCELERATOR-NICS STATUS COMMAND...
    local name=$1 expected=$4
    digest $name "$2" "$3" log_uniform 512
    shift 4
    accelerator $name $configs/$name-accelerator.yaml
    { sleep 4; "$@"; } >/dev/null 2>&1 &
    local change=$!
    frontend $name $configs/$name-frontend.yaml --samples 40000
    wait $change
    holds "$name: exit status $expected" [ $status = $expected ]
    grep -hE "lost|could not|aborted" $out/$name.log | head -3 | sed 's/^/       /'
    ended
}

faults() {
    rdma_second
    local ab='  - {device: rxa, queue_pairs: 2, slots: 32}' cd='  - {device: rxc, queue_pairs: 2, slots: 32}'
    during one-of-two-rails-down "$ab
$cd" "  - {device: rxb}
  - {device: rxd}" 0 ip link set va down
    rdma_plug
    rdma_wait rxa
    during the-only-rail-down "$ab" "  - {device: rxb}" 3 ip link set va down
    rdma_plug
    rdma_wait rxa
    during accelerator-killed "$ab" "  - {device: rxb}" 3 eval 'kill -9 $acc'
}

for what in ${@:-digits two_nics images faults}; do $what; done
rm -rf $configs
exit $failed
