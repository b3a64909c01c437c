# The release programs over libfabric's providers, on this machine:
#
#   cargo build --release -p frontend -p accelerator
#   bash xtask/ofi/runs.sh [PART...]
#
# One line for each thing shown, and exit status 1 where one does not hold. What each run wrote lies in a folder of its
# own under $OFI_OUT (default: a new one in the system's folder for such), and its log beside it.
#
#   digests     100,000 samples of every size to two accelerators, over PROVIDER
#   scenarios   each of LoadGen's four
#   any_order   digests with whatever arrives in any order
#   killed      one of two accelerators killed in the middle
#   faults      OFI_FAULTS (20) accelerators killed or stopped at random moments, from the seed OFI_SEED (1); another is left
#   starts      OFI_STARTS (50) short runs with the deadlines of `faults`: how many do not start
#   many        32 NICs at each end, 256 connections
#   refusals    no library, no provider, no NIC, a provider that is too new for the library
#
# OFI_PROVIDER (default tcp;ofi_rxm) says which provider. OFI_BUSY (0) loops without end run beside it all.
provider=${OFI_PROVIDER:-tcp;ofi_rxm}
out=${OFI_OUT:-$(mktemp -d)}
bin=${OFI_PROGRAMS:-target/release}
# ofi_rxm has 68 MB of buffers for messages, which are not used here, in each endpoint: see docs/ofi.md.
export FI_OFI_RXM_BUFFER_SIZE=${FI_OFI_RXM_BUFFER_SIZE:-256}
# No dumps of libraries that libfabric loads, in the working folder.
export IPATH_NO_BACKTRACE=1
mkdir -p "$out"
failed=0
port=${OFI_PORT:-7900}

# holds TEXT COMMAND...: says whether the command succeeds
holds() {
    local text=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "holds: $text"; else echo "FAILS: $text"; failed=1; return 1; fi
}

# accelerator NAME NICS: starts one on the next port and waits until it is ready
accelerator() {
    port=$((port + 1))
    cat >"$out/$1.yaml" <<YAML
node: $1
control: {listen: 127.0.0.1:$port}
auth: none
model: {name: digest, max_input_bytes: 150528}
engine: {kind: digest, max_batch: 64, max_delay_us: 200}
nics:
$2
memory_mib: 2048
YAML
    "$bin/accelerator" -v --config "$out/$1.yaml" >"$out/$1.log" 2>&1 &
    accelerators="$accelerators $!"
    last=$!
    for _ in $(seq 300); do grep -q ready: "$out/$1.log" && return; sleep 0.1; done
    echo "FAILS: $1 is not ready: $(tail -n 1 "$out/$1.log")"
    failed=1
}

ended() { { kill $accelerators; wait $accelerators; } 2>/dev/null; accelerators=; }

# configure NAME NICS CONTROLS... : a frontend's file
configure() {
    local name=$1 nics=$2
    shift 2
    cat >"$out/$name.yaml" <<YAML
node: frontend
auth: none
model:
  name: digest
  inputs: [{name: input, dtype: u8, shape: [150528], ragged: true}]
  output: {name: output, dtype: u8, shape: [8]}
dataset: {kind: random, distribution: log_uniform, min_bytes: 1, count: 2048, max_bytes: 150528, seed: 7}
verify: digest
accelerators:
$(for c in "$@"; do echo "  - control: 127.0.0.1:$c"; done)
nics:
$nics
loadgen:
  scenario: offline
  settings: {min_duration_ms: 1000, offline_expected_qps: 1000, server_target_latency_ns: 8000000000}
YAML
}

# frontend NAME ARGUMENTS...: its exit status is in $status
frontend() {
    local name=$1
    shift
    timeout 400 "$bin/frontend" --config "$out/$name.yaml" --output "$out/$name" "$@" >"$out/$name.log" 2>&1
    status=$?
}

# of NAME KEY: the first number of that key in the summary
of() {
    local n
    n=$(grep -m1 "\"$2\":" "$out/$1/summary.json" | tr -dc 0-9)
    echo "${n:-none}"
}

# once NAME: every sample completed once, with its own digest
once() {
    [ "$(of "$1" issued)" != none ] && [ "$(of "$1" issued)" = "$(of "$1" answered)" ] &&
        [ "$(of "$1" emptied)" = 0 ] && grep -q '"mismatches": \[\]' "$out/$1/summary.json"
}

# total NAME SIDE KEY: of all connections at the frontend
total() {
    local n
    n=$(sed -n '/"connections_total"/,$p' "$out/$1/summary.json" | sed -n "/\"$2\"/,\$p" | grep -m1 "\"$3\"" | tr -dc 0-9)
    echo "${n:-0}"
}

counts() {
    echo "       $1: $(total "$1" tx writes) writes, $(total "$1" tx work_requests) fi_writemsg, $(total "$1" tx doorbells) bursts," \
        "$(total "$1" rx progress) looks, $(total "$1" rx cqes) completions, $(total "$1" tx copies) copies"
}

# impatient NAME: the deadlines of a trial that is to notice soon
impatient() {
    cat >>"$out/$1.yaml" <<YAML
deadlines: {connect_ms: 4000, lost_ms: 2000, echo_interval_ms: 50, echo_timeout_ms: 600, heartbeat_interval_ms: 200,
  heartbeat_timeout_ms: 1200}
YAML
}

loops=
for _ in $(seq "${OFI_BUSY:-0}"); do
    while :; do :; done &
    loops="$loops $!"
done
trap '[ -z "$loops" ] || kill $loops' EXIT

nic="  - {ofi: \"$provider\", address: 127.0.0.1}"
wanted=${*:-refusals digests scenarios any_order killed many}
for part in $wanted; do
    case $part in
    digests | any_order)
        [ $part = any_order ] && export QDL_OFI_SHUFFLE=7
        accelerator $part-a "$nic"
        a=$port
        accelerator $part-b "$nic"
        configure $part "  - {ofi: \"$provider\", address: 127.0.0.1, connections: 3}" $a $port
        frontend $part --set min_query_count=100000 --set offline_expected_qps=100000 --set max_query_count=100000
        holds "$part: exit status 0 (it is $status)" [ $status = 0 ]
        holds "$part: $(of $part issued) samples, each answered once with its own digest" once $part
        counts $part
        unset QDL_OFI_SHUFFLE
        ended
        ;;
    scenarios)
        accelerator scenarios "$nic"
        for s in offline server single-stream multi-stream; do
            configure $s "$nic" $port
            frontend $s --scenario $s --target-qps 500
            holds "$s: $(of $s issued) samples, each once" once $s
            counts $s
        done
        ended
        ;;
    killed)
        accelerator killed-a "$nic"
        a=$port
        victim=$last
        accelerator killed-b "$nic"
        configure killed "  - {ofi: \"$provider\", address: 127.0.0.1, connections: 3}" $a $port
        (
            for _ in $(seq 600); do [ -s "$out/killed/mlperf_log_detail.txt" ] && break; sleep 0.1; done
            sleep 2
            kill -9 $victim
        ) &
        frontend killed --scenario server --target-qps 1000 --duration-s 6 --set target_latency=60000
        holds "killed: exit status 0 (it is $status)" [ $status = 0 ]
        holds "killed: $(of killed issued) samples, each once" once killed
        holds "killed: $(of killed lost_connections) connections were lost" [ "$(of killed lost_connections)" -ge 3 ]
        ended
        ;;
    faults)
        RANDOM=${OFI_SEED:-1}
        whole=0
        struck=0
        early=0
        for i in $(seq "${OFI_FAULTS:-20}"); do
            at=$((RANDOM % 1200)) connections=$((1 + RANDOM % 4)) signal=KILL
            [ $((RANDOM % 2)) = 0 ] && signal=STOP
            accelerator faults-a "$nic"
            a=$port
            victim=$last
            accelerator faults-b "$nic"
            configure faults "  - {ofi: \"$provider\", address: 127.0.0.1, connections: $connections}" $a $port
            impatient faults
            rm -rf "$out/faults"
            (
                for _ in $(seq 600); do [ -s "$out/faults/mlperf_log_detail.txt" ] && break; sleep 0.05; done
                sleep $((at / 1000)).$(printf %03d $((at % 1000)))
                kill -$signal $victim
            ) &
            striker=$!
            frontend faults --scenario server --target-qps 2000 --duration-s 1.5 --set target_latency=60000
            wait $striker 2>/dev/null
            if grep -q "failed its warm-up" "$out/faults.log"; then
                # Struck before the clock: the frontend names the connection and stops.
                whole=$((whole + 1)) early=$((early + 1))
            elif once faults && { [ $status = 0 ] || [ $status = 1 ]; }; then
                whole=$((whole + 1))
            else
                echo "FAILS: fault $i: $signal after $at ms, $connections connections: exit status $status"
                cp -r "$out/faults" "$out/faults-$i"
                cp "$out/faults.log" "$out/faults-$i.log"
                failed=1
            fi
            [ "$(of faults lost_connections)" != 0 ] && [ $status != 2 ] && struck=$((struck + 1))
            kill -CONT $victim 2>/dev/null
            ended
            port=${OFI_PORT:-7900}
        done 2>/dev/null
        holds "faults: $whole of ${OFI_FAULTS:-20} runs with every sample once, $struck struck, $early of them in the warm-up" \
            [ $whole = "${OFI_FAULTS:-20}" ]
        ;;
    starts)
        started=0
        for i in $(seq "${OFI_STARTS:-50}"); do
            port=${OFI_PORT:-7900}
            accelerator starts-a "$nic"
            a=$port
            accelerator starts-b "$nic"
            configure starts "  - {ofi: \"$provider\", address: 127.0.0.1, connections: $((1 + i % 4))}" $a $port
            impatient starts
            rm -rf "$out/starts"
            frontend starts --set min_query_count=100 --set max_query_count=100 --set offline_expected_qps=100
            ended
            if [ $status != 2 ]; then
                started=$((started + 1))
            else
                echo "FAILS: start $i: $(grep -m1 ^error: "$out/starts.log")"
                for who in starts starts-a starts-b; do cp "$out/$who.log" "$out/$who-$i.log"; done
                failed=1
            fi
        done 2>/dev/null
        holds "starts: $started of ${OFI_STARTS:-50}; the load at the end is $(cut -d ' ' -f 1-3 /proc/loadavg)" \
            [ $started = "${OFI_STARTS:-50}" ]
        ;;
    many)
        each() {
            for i in $(seq 32); do
                echo "  - {ofi: \"$provider\", address: 127.0.$1.$i$2, completion: {mode: event}}"
            done
        }
        patient="deadlines: {connect_ms: 60000, heartbeat_timeout_ms: 30000}"
        accelerator many-a "$(each 1)
$patient"
        configure many "$(each 0 ", connections: 8, slots: 16")" $port
        echo "${patient/connect_ms: 60000/connect_ms: 60000, lost_ms: 40000}" >>"$out/many.yaml"
        begun=$(date +%s%N)
        frontend many --set min_query_count=100000 --set max_query_count=100000 --set offline_expected_qps=100000
        holds "many: $(of many issued) samples, each once" once many
        counts many
        echo "       many: $((($(date +%s%N) - begun) / 1000000)) ms in all; $(grep -m1 -o '[0-9]* connections.*' "$out/many.log"); $(grep -m1 -o 'min .*' "$out/many.log")"
        ended
        ;;
    refusals)
        refused() { # TEXT, then variables and a NIC
            configure refused "  - $3" 1
            env ${2:+"$2"} timeout 20 "$bin/frontend" --config "$out/refused.yaml" --output "$out/refused" \
                >"$out/refused.log" 2>&1
            status=$?
            holds "refused: $(grep -m1 ^error: "$out/refused.log")" grep -q "$1" "$out/refused.log"
            holds "refused in one line, with exit status 2 (it is $status)" \
                [ "$status/$(grep -vc ^memory: "$out/refused.log")" = 2/1 ]
        }
        refused "no libfabric on this machine" QDL_LIBFABRIC=libabsent.so.1 "{ofi: efa, domain: x}"
        refused "not a libfabric" QDL_LIBFABRIC=libc.so.6 "{ofi: efa, domain: x}"
        refused "offers no provider" "" "{ofi: nosuch, domain: x}"
        refused "too old for provider efa" "" "{ofi: efa, domain: rdmap0s6-rdm}"
        refused "has no domain absent0" "" "{ofi: \"$provider\", domain: absent0}"
        refused "has no address 203.0.113.9" "" "{ofi: \"$provider\", address: 203.0.113.9}"
        ;;
    *)
        echo "no such part: $part"
        failed=1
        ;;
    esac
done
echo "what each run wrote: $out"
exit $failed
