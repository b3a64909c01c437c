# Where threads run and memory lies, read back from the kernel while runs go on, in a guest with two NUMA nodes
# (`cargo xtask soft-roce --numa`): cores 0-1 and rxc, rxd on node 0; cores 2-3 and rxa, rxb on node 1.
#
#   numa.sh FOLDER      FOLDER has the programs, target/debug say
#
# One line for each thing shown, and exit status 1 where one does not hold. What each run wrote lies in /mnt/out/NAME.
programs=$1
out=/mnt/out
failed=0
SAMPLES=96
BYTES=100000
SLOTS=16
# Pages that hold all samples, and all request slots of two connections.
sample_pages=$((SAMPLES * BYTES / 4096))
slot_pages=$((2 * SLOTS * BYTES / 4096))

# holds TEXT COMMAND...: says whether the command succeeds
holds() {
    local text=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "holds: $text"; else echo "FAILS: $text"; failed=1; fi
}

# cores PID THREAD: where the threads may run whose names begin so, each core list once
cores() {
    local task
    for task in /proc/$1/task/*; do
        case $(cat $task/comm) in $2*) sed -n 's/^Cpus_allowed_list:\t//p' $task/status ;; esac
    done | sort -u | paste -sd' '
}

# bound PID POLICY NODE: pages on this node of memory with this policy
bound() {
    awk -v policy="$2" -v node="N$3=" '$2 == policy {
        for (i = 3; i <= NF; i++) if (index($i, node) == 1) n += substr($i, length(node) + 1)} END {print n + 0}' /proc/$1/numa_maps
}

# unequal [ ... ] with words in between is hard to read in a failure
same() { [ "$1" = "$2" ] || { echo "       it is $1, not $2" >>$out/why; return 1; }; }
least() { [ "$1" -ge "$2" ] || { echo "       it is $1, less than $2" >>$out/why; return 1; }; }

# configured NAME FRONTEND-NICS ACCELERATOR-NICS: a pair of configurations
configured() {
    mkdir -p $out/$1
    cat >$out/$1/accelerator.yaml <<YAML
node: accelerator
control: {listen: 127.0.0.1:7900}
model: {name: digest, max_input_bytes: $BYTES}
engine: {kind: digest, threads: 2, max_batch: 8, max_delay_us: 200, delay_us: 1000}
nics:
$3
memory_mib: 64
deadlines: {heartbeat_timeout_ms: 20000}
YAML
    cat >$out/$1/frontend.yaml <<YAML
node: frontend
model:
  name: digest
  inputs: [{name: input, dtype: u8, shape: [$BYTES], ragged: true}]
  output: {name: output, dtype: u8, shape: [8]}
dataset: {kind: random, distribution: fixed, count: $SAMPLES, max_bytes: $BYTES, seed: 7}
verify: digest
accelerators: [{control: 127.0.0.1:7900}]
nics:
$2
deadlines: {heartbeat_timeout_ms: 20000, echo_timeout_ms: 20000, lost_ms: 40000}
warm_up: {budget_ms: 0}
loadgen:
  settings: {server_target_qps: 20, server_target_latency_ns: 8000000000, min_query_count: 1, min_duration_ms: 4000}
YAML
}

# began NAME FRONTEND-NICS ACCELERATOR-NICS: starts a run and waits until LoadGen is in the midst of it; $acc and $front
# are the two programs
began() {
    configured "$@"
    $programs/accelerator -v --once --config $out/$1/accelerator.yaml >$out/$1/accelerator.log 2>&1 &
    acc=$!
    local try
    for try in $(seq 300); do grep -q ready: $out/$1/accelerator.log && break; sleep 0.1; done
    $programs/frontend --config $out/$1/frontend.yaml --scenario server --mode performance \
        --output $out/$1/run >$out/$1/frontend.log 2>&1 &
    front=$!
    for try in $(seq 600); do [ -e $out/$1/run/mlperf_log_detail.txt ] && break; sleep 0.1; done
    # Samples are loaded before the clock starts, and answered from then on.
    for try in $(seq 100); do [ "$(bound $front "$4" "$5")" -ge $((sample_pages / 2)) ] && break; sleep 0.1; done
    sleep 1
}

# ended NAME: the run was a good one
ended() {
    wait $front
    holds "$1: every sample is answered, with its own digest" same $? 0
    wait $acc
}

# nic NAME INDEX KEY: what the frontend's summary says of a NIC, in one line
place() { tr -d ' \n' <$out/$1/run/summary.json | sed 's/.*"places":{//; s/"ledger".*//'; }

# all_on NAME NODE CORES: while the run goes on, then what the summaries say
all_on() {
    local name=$1 node=$2 cores=$3 other=$((1 - $2)) pid
    holds "$name: the frontend's NIC thread runs on cores $cores" same "$(cores $front rail-)" "${4:-$cores}"
    holds "$name: the accelerator's NIC thread and its helper run on cores $cores" same "$(cores $acc rail-)" "${4:-$cores}"
    holds "$name: engine threads run on cores $cores" same "$(cores $acc engine-)" $cores
    holds "$name: samples and responses lie on node $node" least "$(bound $front prefer:$node $node)" $sample_pages
    holds "$name: slots and responses lie on node $node" least "$(bound $acc prefer:$node $node)" $slot_pages
    for pid in $front $acc; do
        holds "$name: none of them lies on node $other" same "$(bound $pid prefer:$node $other)" 0
    done
    ended $name
    holds "$name: the summary says so" grep -q "\"nodes\":2,\"nics\":\[{[^]]*\"slots\":\[$node\]}\],\"samples\":\[$node\]" <(place $name)
    holds "$name: for people, too" grep -q "nics\[0\] .*: node $node; thread on cores ${4:-$cores}, slots on node $node" $out/$name/frontend.log
    holds "$name: the accelerator's says so" grep -q "nics\[0\] .*: node $node; thread on cores ${4:-$cores}, slots on node $node" $out/$name/accelerator.log
}

ib='queue_pairs: 2, slots: 16, timeout: 18'
tcp='connections: 2, slots: 16'
for numa in auto 0; do
    node=1 cores=2-3
    [ $numa = 0 ] && node=0 cores=0-1
    began ib-$numa "  - {device: rxa, $ib, numa: $numa}" "  - {device: rxb, timeout: 18, numa: $numa}" prefer:$node $node
    all_on ib-$numa $node $cores
    began tcp-$numa "  - {address: 10.9.1.1, $tcp, numa: $numa}" "  - {listen: 10.9.1.2:7901, numa: $numa}" prefer:$node $node
    all_on tcp-$numa $node $cores
done
# `cpus` is for the NIC thread alone: memory and engine stay on the NIC's node.
began cpus "  - {device: rxa, $ib, cpus: [1]}" "  - {device: rxb, timeout: 18, cpus: [1]}" prefer:1 1
all_on cpus 1 2-3 1
# Two NICs on two nodes, each with its own; what both use is on both.
began both "  - {device: rxa, $ib}
  - {address: 10.9.2.1, $tcp}" "  - {device: rxb, timeout: 18}
  - {listen: 10.9.2.2:7902}" interleave:0-1 1
for pid in $front $acc; do
    holds "both: the thread of the NIC on node 1 runs there" same "$(cores $pid rail-0)" 2-3
    holds "both: the thread of the NIC on node 0 runs there" same "$(cores $pid rail-1)" 0-1
    for node in 0 1; do
        holds "both: memory that belongs on node $node lies there" same "$(bound $pid prefer:$node $((1 - node)))" 0
    done
done
for node in 0 1; do
    holds "both: slots of the NIC on node $node" least "$(bound $acc prefer:$node $node)" $slot_pages
    holds "both: half of the samples lie on node $node" least "$(bound $front interleave:0-1 $node)" $((sample_pages * 45 / 100))
done
holds "both: the engine runs on both nodes" same "$(cores $acc engine-)" 0-3
ended both
holds "both: the summary says so" grep -q '"slots":\[1\]},.*"slots":\[0\]}\],"samples":\[0,1\]' <(place both)
[ -e $out/why ] && cat $out/why
[ $failed = 0 ] && rm -rf ${out:?}/*-auto ${out:?}/*-0 ${out:?}/cpus ${out:?}/both
exit $failed
