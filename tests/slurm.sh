#!/usr/bin/env bash
# The quick suite through a real SLURM of one node, and its records against those of a local run.
#
#   sudo tests/slurm.sh [options of `python -m meprop run`, such as --only table2-baseline]
#
# For Debian and Ubuntu, as root: installs slurm-wlm and munge, writes their configuration, starts them,
# and stops and removes what it has started and written, except the packages. Not a part of `make test`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { printf 'tests/slurm.sh: %s\n' "$*" >&2; exit 1; }

python=$PWD/.venv/bin/python
conf=/etc/slurm/slurm.conf
[[ $EUID == 0 ]] || fail "SLURM's daemons have to be started as root."
[[ -x $python ]] || fail "there is no .venv: run make test first."
[[ ! -e $conf ]] || fail "$conf is there: this machine has a SLURM already, use it as it is."
command -v apt-get >/dev/null || fail "there is no apt-get to install SLURM with."

work=$(mktemp -d)
pids=()
stop() {
    status=$?
    for pid in "${pids[@]}"; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -f "$conf" ${policy:+"$policy"}
    if ((status)); then echo "What is left of it: $work"; else rm -rf "$work"; fi
    exit $status
}
trap stop EXIT
trap 'exit 130' INT TERM

if ! { command -v slurmctld && command -v munged; } >/dev/null; then
    echo "Installing slurm-wlm and munge"
    # The packages must not start daemons by themselves: those would be nobody's to stop.
    [[ -e /usr/sbin/policy-rc.d ]] || policy=/usr/sbin/policy-rc.d
    [[ ! ${policy-} ]] || { printf '#!/bin/sh\nexit 101\n' > "$policy"; chmod +x "$policy"; }
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
        --no-install-recommends slurm-wlm munge; } >"$work/apt.log" 2>&1 || installed=no
    [[ ! ${policy-} ]] || rm "$policy"
    unset policy
    [[ ! ${installed-} ]] || fail "apt-get could not install slurm-wlm and munge: see $work/apt.log"
fi

host=$(hostname -s)
mkdir -p "${conf%/*}" "$work"/{state,spool}
# No accounting: neither a data base nor control groups are there.
cat >"$conf" <<CONF
ClusterName=meprop
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
NodeName=$host NodeAddr=127.0.0.1 CPUs=$(nproc) RealMemory=$(free -m | awk '/^Mem:/ { print $2 }')
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF

start() { # start NAME COMMAND...: in the background, with a log
    local name=$1
    shift
    "$@" >"$work/$name.log" 2>&1 &
    pids=($! "${pids[@]}") # the last one is stopped first
}
if ! munge -n >/dev/null 2>&1; then
    install -d -o munge -g munge -m 755 /run/munge
    start munged runuser -u munge -- munged --foreground
    for _ in {1..50}; do munge -n >/dev/null 2>&1 && break || sleep 0.2; done
fi
start slurmctld slurmctld -D
start slurmd slurmd -D
for _ in {1..150}; do [[ $(sinfo -h -o %t 2>/dev/null) == idle ]] && break || sleep 0.2; done
[[ $(sinfo -h -o %t) == idle ]] || fail "SLURM does not come up: see $work/slurmctld.log and slurmd.log"
echo "SLURM is up: $(sinfo --version), $(sinfo -h -o '%D node, %c cores')"

for place in local slurm; do
    mkdir "$work/$place"
    cp -R --preserve=timestamps meprop notebooks profiles Snakefile experiments.yml "$work/$place"
    profile=()
    [[ $place == local ]] || profile=(--profile slurm)
    echo "The quick suite, $place"
    (
        cd "$work/$place"
        export PYTHONPATH=$PWD XDG_CACHE_HOME=$PWD/cache
        if [[ $place == slurm ]]; then
            # Killed with its first jobs on the node, which go on: the same command finds its way beside them.
            "$python" -m meprop run quick "$@" "${profile[@]}" >"$work/killed.log" 2>&1 &
            for _ in {1..600}; do compgen -G '_build/logs/quick/*.log' >/dev/null && break || sleep 0.2; done
            kill -KILL $! || fail "no job was started: see $work/killed.log"
            wait $! 2>/dev/null || true
            echo "Killed with $(squeue -h | wc -l) jobs in the queue, and once more"
        fi
        "$python" -m meprop run quick "$@" "${profile[@]}"
    )
done

cd "$work"
PYTHONPATH=$work/local "$python" - <<'CODE'
from meprop.study.record import find_records

local, slurm = (find_records(f"{place}/_build/results/quick") for place in ("local", "slurm"))
assert local and local.keys() == slurm.keys(), (sorted(local), sorted(slurm))
for name, record in local.items():
    assert record.outcome() == slurm[name].outcome(), f"{name}: the records differ"
print(f"{len(local)} records are the same, bit for bit.")
CODE
