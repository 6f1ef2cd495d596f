#!/usr/bin/env bash
# A worker in shell: for each job of a queue it runs a command, with the payload on its standard input.
#
#     LEASEMILL_URL=http://127.0.0.1:7411 ./worker.sh QUEUE COMMAND [ARGUMENT...]
#
# What the command prints must be JSON, and is the job's result. If it exits with another code than 0, the job is retried,
# and what it wrote to standard error is recorded. It finds LEASEMILL_JOB_ID, LEASEMILL_ATTEMPT and LEASEMILL_FENCE in its
# environment: pass the fence on to systems that can refuse an older one.
#
# Needs bash 5, curl (7.84 or newer) and jq. With DRAIN=1 it ends once no job is due. After SIGTERM it ends when its
# job, or the claim that waits (WAIT_S, 20 seconds), is over.
set -uo pipefail

url=${LEASEMILL_URL:?set LEASEMILL_URL to the address of the server}
queue=${1:?usage: worker.sh QUEUE COMMAND [ARGUMENT...]}
shift
worker="$(hostname)-$$"
wait_s=${WAIT_S:-20}
[ -n "${DRAIN:-}" ] && wait_s=1
folder=$(mktemp -d)
stopping=
handler=
trap '[ "$BASHPID" = "$$" ] && rm -rf "$folder"' EXIT # also run by a child that is killed before it is another program
trap 'stopping=1' TERM INT

log() { printf '%s %s\n' "$(date -u +%FT%TZ)" "$*" >&2; }
now_us() { printf '%s' "${EPOCHREALTIME/[.,]/}"; }
seconds() { printf '%d.%06d' $(($1 / 1000000)) $(($1 % 1000000)); }

# The key comes to curl through a pipe: everybody on the machine can read the arguments of a process.
ask() {
    if [ -n "${LEASEMILL_TOKEN:-}" ]; then
        curl --header @<(printf 'Authorization: Bearer %s\n' "$LEASEMILL_TOKEN") "$@"
    else
        curl "$@"
    fi
}

# call VERB JSON FILE [UNTIL_US]: the answer goes to the file, the status to standard output. A server that is away or busy is
# waited for, as long as it asks for: every call here may be repeated, for it carries the token or the request id it is
# about. Until then at most; the status is 000 if no answer came in time.
call() {
    local status retry_s left_us pause_us=200000 limit_s=90
    while :; do
        if [ -n "${4:-}" ]; then
            left_us=$(($4 - $(now_us)))
            [ "$left_us" -gt 0 ] || { printf 000 && return; }
            [ "$left_us" -lt 90000000 ] && limit_s=$(seconds "$left_us")
        fi
        read -r status retry_s < <(ask --silent --show-error --max-time "$limit_s" --json @- --output "$3" \
            --write-out '%{http_code} %header{retry-after}\n' "$url/v1/$1" <<<"$2" 2>"$3.error")
        status=${status:-000}
        [ "$status" -ge 200 ] && [ "$status" -lt 500 ] && [ "$status" != 429 ] && break
        log "no answer to $1, trying again: status $status $(cat "$3.error")"
        [[ ${retry_s:-} =~ ^[0-9]{1,4}$ ]] && [ $((retry_s * 1000000)) -gt "$pause_us" ] && pause_us=$((retry_s * 1000000))
        [ -n "${4:-}" ] && left_us=$(($4 - $(now_us))) && [ "$left_us" -gt 0 ] && [ "$left_us" -lt "$pause_us" ] && pause_us=$left_us
        sleep "$(seconds "$pause_us")"
        pause_us=1000000
    done
    printf '%s' "$status"
}

# Extends the lease until it is killed. Ends the handler, and then itself, when the lease is lost, or nearly over without an
# answer: why is in the file `lost`, and nothing is reported then.
heartbeat() {
    local ref=$1 ttl_us=$2 until_us=$3 running=$4 began_us status
    while sleep "$(seconds $((ttl_us / 3)))"; do
        began_us=$(now_us)
        status=$(call extend "{\"leases\":[$ref]}" "$folder/beat" "$until_us")
        case $status in
        200) until_us=$((began_us + ttl_us * 9 / 10)) ;;
        409) jq -r '"is another worker'\''s now: " + .answer[0].reason' "$folder/beat" >"$folder/lost" ;;
        000) echo "got no answer in time: its lease ends, another worker will run it" >"$folder/lost" ;;
        *)
            log "extend: status $status $(cat "$folder/beat")"
            [ $(($(now_us) + ttl_us / 3)) -lt "$until_us" ] ||
                echo "could not extend its lease (status $status): another worker will run it" >"$folder/lost"
            ;;
        esac
        if [ -e "$folder/lost" ]; then
            kill "$running" 2>/dev/null
            sleep "$(seconds $((ttl_us / 20)))"
            kill -KILL "$running" 2>/dev/null
            return
        fi
    done
}

# ended JOB STATUS: what became of the last report.
ended() {
    case $2 in
    200) log "job $1: $(jq -r '.[0].outcome' "$folder/answer")" ;;
    409) log "job $1 is another worker's now: $(jq -r '.answer[0].reason' "$folder/answer")" ;;
    *) log "job $1: status $2 $(cat "$folder/answer" 2>/dev/null)" ;; # its lease ends, and it is retried
    esac
}

run() {
    local lease=$1 received_us=$2 ref id attempt fence ttl_us until_us beat code status error
    shift 2
    ref=$(jq -c '{job_id: .job.id, token}' <<<"$lease")
    id=$(jq -r .job.id <<<"$lease")
    attempt=$(jq -r .attempt <<<"$lease")
    fence=$(jq -r .fence <<<"$lease")
    ttl_us=$(jq -r '[.terms.lease_ttl_us, 3600000000] | min' <<<"$lease")
    until_us=$((received_us + ttl_us * 9 / 10))
    jq -c '.job.payload' <<<"$lease" >"$folder/payload"
    rm -f "$folder/lost"
    status=$(call start "{\"reports\":[$ref]}" "$folder/answer" "$until_us")
    if [ "$status" != 200 ]; then # the handler does not run
        ended "$id" "$status"
        return
    fi
    LEASEMILL_JOB_ID=$id LEASEMILL_ATTEMPT=$attempt LEASEMILL_FENCE=$fence \
        "$@" <"$folder/payload" >"$folder/result" 2>"$folder/error" &
    handler=$!
    heartbeat "$ref" "$ttl_us" "$until_us" "$handler" &
    beat=$!
    while :; do # a signal interrupts the wait, not the handler
        wait "$handler"
        code=$?
        kill -0 "$handler" 2>/dev/null || break
    done
    kill "$beat" 2>/dev/null
    wait "$beat" 2>/dev/null
    if [ -e "$folder/lost" ]; then
        log "job $id $(cat "$folder/lost")"
        return
    fi
    if [ "$code" -ne 0 ]; then
        error=$(tail -c 2000 "$folder/error" | jq -Rs --arg code "$code" '. + "exit " + $code')
        status=$(call nack "{\"reports\":[$(jq -c --argjson error "$error" '. + {error: $error}' <<<"$ref")]}" "$folder/answer")
    elif [ -s "$folder/result" ] && ! jq . "$folder/result" >/dev/null 2>&1; then
        status=$(call nack "{\"reports\":[$(jq -c '. + {error: "the result is not JSON", is_permanent: true}' <<<"$ref")]}" \
            "$folder/answer")
    else
        [ -s "$folder/result" ] || echo null >"$folder/result"
        status=$(call ack "{\"reports\":[$(jq -c --slurpfile result "$folder/result" '. + {result: $result[0]}' <<<"$ref")]}" \
            "$folder/answer")
    fi
    ended "$id" "$status"
}

while [ -z "$stopping" ]; do
    request=$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')
    claim=$(jq -nc --arg worker "$worker" --arg queue "$queue" --arg id "$request" --argjson wait "$wait_s" \
        '{worker: $worker, queues: [$queue], limit: 1, request_id: $id, wait_s: $wait}')
    status=$(call claim "$claim" "$folder/claimed")
    if [ "$status" != 200 ]; then
        log "cannot claim: $(cat "$folder/claimed")"
        exit 1
    fi
    lease=$(jq -c '.[0] // empty' "$folder/claimed")
    if [ -n "$lease" ]; then
        run "$lease" "$(now_us)" "$@"
    elif [ -n "${DRAIN:-}" ]; then
        break
    fi
done
log "stopped"
