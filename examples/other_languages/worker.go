// A worker in Go, 1.19 or newer, with the standard library alone.
//
//	LEASEMILL_URL=http://127.0.0.1:7411 go run worker.go
//
// handlers has a function for each kind of job. It gets the payload and a job with its id, attempt and fence. The context
// is cancelled when the lease is lost, and the fence is for systems that can refuse an older one. What a handler returns is
// the result; an error is a failure, and the job is retried.
// With DRAIN=1 the worker ends once no job is due.
package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type handler func(ctx context.Context, payload json.RawMessage, job job) (any, error)

var handlers = map[string]handler{
	"greet": greet,
	"nap":   nap,
	"fail":  func(context.Context, json.RawMessage, job) (any, error) { return nil, errors.New("as it was asked to") },
}

func greet(_ context.Context, payload json.RawMessage, job job) (any, error) {
	var arguments struct{ Name string }
	if err := json.Unmarshal(payload, &arguments); err != nil {
		return nil, err
	}
	greeting := "hello " + arguments.Name
	if path := os.Getenv("GREETINGS"); path != "" {
		file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		if _, err := fmt.Fprintf(file, "%d %s\n", job.Fence, greeting); err != nil {
			return nil, err
		}
	}
	return map[string]string{"greeting": greeting}, nil
}

func nap(ctx context.Context, payload json.RawMessage, _ job) (any, error) {
	var arguments struct{ Ms int }
	if err := json.Unmarshal(payload, &arguments); err != nil {
		return nil, err
	}
	return map[string]int{"slept": arguments.Ms}, pause(ctx, time.Duration(arguments.Ms)*time.Millisecond)
}

// job is what a handler knows of its job.
type job struct {
	ID      string
	Attempt int64
	Fence   int64
}

type lease struct {
	Token   string
	Attempt int64
	Fence   int64
	Job     struct {
		ID      string
		Kind    string
		Payload json.RawMessage
	}
	Terms struct {
		LeaseTTLUs int64 `json:"lease_ttl_us"`
	}
}

// report is an item of start, extend, ack, nack and release.
type report struct {
	JobID   string `json:"job_id"`
	Token   string `json:"token"`
	Result  any    `json:"result,omitempty"`
	Error   string `json:"error,omitempty"`
	DelayUs int64  `json:"delay_us,omitempty"`
}

type outcome struct {
	Outcome string
	Reason  string
}

// lost is the error of a call whose lease is not ours any more.
type lost struct{ reason string }

func (l lost) Error() string { return "is another worker's now: " + l.reason }

type worker struct {
	url    string
	token  string
	name   string
	queues []string
	drain  bool
}

// refused is the error of a call whose answer will always be the same.
type refused struct{ message string }

func (r refused) Error() string { return r.message }

// call runs one command. A server that is away or busy is waited for, as long as it asks for: every call here may be
// repeated, because it carries the token or the request id it is about. The context ends the waiting.
func (w worker) call(ctx context.Context, verb string, body, answer any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		retryAfter, err := w.once(ctx, verb, encoded, answer)
		if err == nil || errors.As(err, &lost{}) || errors.As(err, &refused{}) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		log.Printf("no answer to %s, trying again: %v", verb, err)
		if err := pause(ctx, max(retryAfter, wait)); err != nil {
			return err
		}
	}
}

// once sends a request. What is neither lost nor refused may be repeated, after the time that the server asks for.
func (w worker) once(ctx context.Context, verb string, body []byte, answer any) (retryAfter time.Duration, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url+"/v1/"+verb, bytes.NewReader(body))
	if err != nil {
		return 0, refused{err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	if w.token != "" {
		request.Header.Set("Authorization", "Bearer "+w.token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	received, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode == http.StatusOK {
		return 0, json.Unmarshal(received, answer)
	}
	var problem struct {
		Detail string
		Reason string
		Answer json.RawMessage
	}
	_ = json.Unmarshal(received, &problem) // what is not a problem has no detail
	var answers []outcome
	if problem.Reason == "lost" && json.Unmarshal(problem.Answer, &answers) == nil && len(answers) > 0 {
		return 0, lost{answers[0].Reason}
	}
	message := fmt.Sprintf("%s: %s %s", verb, response.Status, problem.Detail)
	if response.StatusCode < 500 && response.StatusCode != http.StatusTooManyRequests {
		return 0, refused{message}
	}
	seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 without
	return time.Duration(seconds) * time.Second, errors.New(message)
}

func (w worker) report(ctx context.Context, verb string, item report) (outcome, error) {
	name := "reports"
	if verb == "extend" {
		name = "leases"
	}
	var answers []outcome
	if err := w.call(ctx, verb, map[string][]report{name: {item}}, &answers); err != nil {
		return outcome{}, err
	}
	return answers[0], nil
}

// heartbeat extends a lease until the context ends. It cancels the handler, and returns why, when the lease is lost or nearly
// over without an answer.
func (w worker) heartbeat(ctx context.Context, cancel context.CancelFunc, held report, ttl time.Duration) error {
	until := time.Now().Add(ttl * 9 / 10)
	for pause(ctx, ttl/3) == nil {
		began := time.Now()
		limited, release := context.WithDeadline(ctx, until)
		_, err := w.report(limited, "extend", held)
		release()
		if err == nil {
			until = began.Add(ttl * 9 / 10)
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if errors.As(err, &refused{}) && time.Now().Add(ttl/3).Before(until) {
			log.Print(err)
			continue
		}
		cancel()
		if errors.As(err, &lost{}) || errors.As(err, &refused{}) {
			return err
		}
		return errors.New("got no answer in time: its lease ends, another worker will run it")
	}
	return nil
}

// run runs one job and reports its end; nothing is reported of one whose lease is lost. The handler has ended when it returns.
func (w worker) run(taken lease) error {
	held := report{JobID: taken.Job.ID, Token: taken.Token}
	running, cancel := context.WithCancel(context.Background())
	ttl := min(time.Duration(taken.Terms.LeaseTTLUs), 3_600_000_000) * time.Microsecond // an hour, if it has no end
	beating := make(chan error, 1)
	go func() { beating <- w.heartbeat(running, cancel, held, ttl) }()
	verb, last, failed := w.handle(running, taken, held)
	cancel()
	if err := <-beating; err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	ended, err := w.report(context.Background(), verb, last)
	if err == nil {
		log.Printf("job %s: %s", taken.Job.ID, ended.Outcome)
	}
	return err
}

// handle returns how the run ends, or an error if the job may not be begun.
func (w worker) handle(ctx context.Context, taken lease, held report) (verb string, last report, failed error) {
	last = held
	handle, isKnown := handlers[taken.Job.Kind]
	if !isKnown { // another worker may know this kind: give it back, and say why
		last.DelayUs, last.Error = 1_000_000, "no handler for "+taken.Job.Kind
		return "release", last, nil
	}
	if _, err := w.report(ctx, "start", held); err != nil {
		return "", last, err
	}
	result, err := handle(ctx, taken.Job.Payload, job{taken.Job.ID, taken.Attempt, taken.Fence})
	if err != nil {
		last.Error = err.Error()
		return "nack", last, nil
	}
	last.Result = result
	return "ack", last, nil
}

// slot runs one job after the other until the context ends.
func (w worker) slot(ctx context.Context) error {
	waitS := 20
	if w.drain {
		waitS = 1
	}
	for ctx.Err() == nil {
		var leases []lease
		claim := map[string]any{
			"worker": w.name, "queues": w.queues, "limit": 1, "request_id": newID(), "wait_s": waitS,
		}
		if err := w.call(ctx, "claim", claim, &leases); err != nil {
			if ctx.Err() != nil { // the server releases what it granted to a caller that went away
				return nil
			}
			return err
		}
		for _, taken := range leases {
			if err := w.run(taken); err != nil {
				log.Printf("job %s %v", taken.Job.ID, err) // the others go on
			}
		}
		if len(leases) == 0 && w.drain {
			return nil
		}
	}
	return nil
}

func main() {
	log.SetFlags(log.LUTC | log.Ldate | log.Ltime | log.Lmsgprefix)
	hostname, _ := os.Hostname()
	slots, err := strconv.Atoi(environment("SLOTS", "4"))
	if err != nil || slots < 1 {
		log.Fatalf("SLOTS must be a number above 0, not %q", os.Getenv("SLOTS"))
	}
	w := worker{
		url:    environment("LEASEMILL_URL", "http://127.0.0.1:7411"),
		token:  os.Getenv("LEASEMILL_TOKEN"),
		name:   fmt.Sprintf("%s-%d", hostname, os.Getpid()),
		queues: strings.Split(environment("QUEUES", "default"), ","),
		drain:  os.Getenv("DRAIN") != "",
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var running sync.WaitGroup
	for number := 0; number < slots; number++ {
		running.Add(1)
		go func() {
			defer running.Done()
			if err := w.slot(ctx); err != nil {
				log.Fatal(err)
			}
		}()
	}
	running.Wait()
	log.Print("stopped")
}

func environment(name, otherwise string) string {
	if value := os.Getenv(name); value != "" {
		return value
	}
	return otherwise
}

func newID() string {
	drawn := make([]byte, 12)
	if _, err := rand.Read(drawn); err != nil {
		log.Fatal(err)
	}
	return hex.EncodeToString(drawn)
}

func min(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}

func max(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

// pause waits, or returns the context's error.
func pause(ctx context.Context, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
