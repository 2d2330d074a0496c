// Package s3d serves the S3 API over a folder: Versity's gateway with its
// POSIX backend, made durable and made to fit a supervised child process. It
// is a module of its own so that no service inherits the gateway's many
// dependencies, and it serves one folder per process, for the backend changes
// the process's working directory.
package s3d

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"
)

// Environment variables with the root account's credentials.
const (
	AccessKeyVar = "REEVE_S3_ACCESS_KEY"
	SecretKeyVar = "REEVE_S3_SECRET_KEY" //nolint:gosec // a name, not a secret
)

const (
	// maxConnections bounds the connections served at once.
	maxConnections = 4096
	// maxParts and maxCopy are S3's own limits.
	maxParts = 10_000
	maxCopy  = 5 << 30
	// bindTries bounds the search for a free port.
	bindTries = 16
)

// options are the command line.
type options struct {
	dir, addr, region string
	metadata          string
	temp, withParent  bool
	access, secret    string
}

// Main runs the server until it is told to stop, and returns the exit code.
// When it takes requests it prints one line of JSON with its address.
func Main(args []string) int {
	// The gateway prints to stdout; the only line there is to be ours.
	ready := os.Stdout
	os.Stdout = os.Stderr

	//nolint:forbidigo // this module does without package service and all that it needs
	o := options{access: os.Getenv(AccessKeyVar), secret: os.Getenv(SecretKeyVar)}
	fs := flag.NewFlagSet("s3d", flag.ContinueOnError)
	fs.StringVar(&o.dir, "dir", "", "folder that holds the buckets")
	fs.StringVar(&o.addr, "addr", "127.0.0.1:9000", "address to listen on; port 0 takes a free one")
	fs.StringVar(&o.region, "region", "us-east-1", "region to answer for")
	fs.StringVar(&o.metadata, "metadata", "auto", "where object metadata is kept: xattr, files, or auto: files where the file system has no extended attributes")
	fs.BoolVar(&o.temp, "temp", false, "serve a new temporary folder, removed at the end, without syncing it")
	fs.BoolVar(&o.withParent, "with-parent", false, "stop when standard input ends")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if o.withParent {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		go func() {
			// The write end is the parent's alone: it ends with the parent, however that ends.
			_, _ = io.Copy(io.Discard, os.Stdin)
			cancel()
		}()
	}
	if err := run(ctx, o, ready); err != nil {
		fmt.Fprintln(os.Stderr, "s3d:", err)
		return 1
	}
	return 0
}

// run serves until ctx ends.
func run(ctx context.Context, o options, ready io.Writer) (err error) {
	if o.access == "" || o.secret == "" {
		return fmt.Errorf("set %s and %s to the credentials that clients will use", AccessKeyVar, SecretKeyVar)
	}
	if o.temp == (o.dir != "") {
		return errors.New("give one of --dir and --temp")
	}
	if o.temp {
		if o.dir, err = os.MkdirTemp("", "reeve-s3d-*"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	}
	be, err := open(o)
	if err != nil {
		return err
	}
	defer be.Shutdown()

	ended := make(chan error, 1)
	srv, addr, err := listen(ctx, o, be, ended)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(ready).Encode(map[string]string{"addr": addr}); err != nil {
		return fmt.Errorf("say that it is ready: %w", err)
	}
	select {
	case err := <-ended:
		return fmt.Errorf("serve %s: %w", addr, err)
	case <-ctx.Done():
		return stop(srv)
	}
}

// lastRequests is how long requests in hand may take at a stop.
const lastRequests = 2 * time.Second

// stop lets requests in hand end. Connections that clients keep open without a
// request are not waited for.
func stop(srv *s3api.S3ApiServer) error {
	done := make(chan error, 1)
	go func() { done <- srv.ShutDown() }()
	select {
	case err := <-done:
		return err
	case <-time.After(lastRequests):
		return nil
	}
}

// open opens the folder as a backend, with object metadata in extended
// attributes, or in files beside the buckets.
func open(o options) (*backend, error) {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return nil, err
	}
	buckets := filepath.Join(dir, "buckets")
	if err := os.MkdirAll(buckets, 0o750); err != nil {
		return nil, err
	}
	opts := posix.PosixOpts{CopyObjectThreshold: maxCopy}
	files := filepath.Join(dir, "metadata")
	switch o.metadata {
	case "files":
		opts.SideCarDir = files
	case "auto", "xattr":
		// What began with files goes on with them.
		_, began := os.Stat(files)
		err := attributes(buckets)
		switch {
		case err != nil && o.metadata == "xattr":
			return nil, fmt.Errorf("%s: extended attributes: %w", buckets, err)
		case err != nil || o.metadata == "auto" && began == nil:
			fmt.Fprintf(os.Stderr, "s3d: keeping metadata in %s\n", files)
			opts.SideCarDir = files
		}
	default:
		return nil, fmt.Errorf("--metadata is auto, xattr or files, not %q", o.metadata)
	}
	var store meta.MetadataStorer = meta.XattrMeta{}
	if opts.SideCarDir != "" {
		if err := os.MkdirAll(files, 0o750); err != nil {
			return nil, err
		}
		if store, err = meta.NewSideCar(files); err != nil {
			return nil, err
		}
	}
	p, err := posix.New(buckets, store, opts)
	if err != nil {
		return nil, fmt.Errorf("serve %s: %w", dir, err)
	}
	return &backend{Posix: p, root: buckets, sidecar: opts.SideCarDir, sync: !o.temp}, nil
}

// attributes reports why files in dir cannot carry extended attributes, by
// writing one: some file systems only refuse that.
func attributes(dir string) error {
	f, err := os.CreateTemp(dir, ".attributes-*")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	return meta.XattrMeta{}.StoreAttribute(f, "", "", "test", []byte("test"))
}

// iam knows one account.
type iam struct{ auth.IAMService }

func single(root middlewares.RootUserConfig) iam {
	return iam{auth.NewIAMServiceSingle(auth.Account{Access: root.Access, Secret: root.Secret, Role: auth.RoleAdmin})}
}

// GetUserAccount says of any other account that it does not exist, with the
// error that clients get as a denied access. The gateway's own reads as a
// missing bucket.
func (i iam) GetUserAccount(access string) (auth.Account, error) {
	a, err := i.IAMService.GetUserAccount(access)
	if err != nil {
		return auth.Account{}, auth.ErrNoSuchUser
	}
	return a, nil
}

// listen starts serving and returns once connections are taken. The gateway
// cannot tell which free port it got, so port 0 is resolved before, and again
// should another process be faster.
func listen(ctx context.Context, o options, be *backend, ended chan<- error) (*s3api.S3ApiServer, string, error) {
	host, port, err := net.SplitHostPort(o.addr)
	if err != nil {
		return nil, "", fmt.Errorf("--addr: %w", err)
	}
	for try := 1; ; try++ {
		addr := o.addr
		if port == "0" {
			l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
			if err != nil {
				return nil, "", fmt.Errorf("listen on %s: %w", o.addr, err)
			}
			addr = l.Addr().String()
			if err := l.Close(); err != nil {
				return nil, "", err
			}
		}
		up := make(chan struct{})
		root := middlewares.RootUserConfig{Access: o.access, Secret: o.secret}
		srv, err := s3api.New(be, root, o.region, single(root), nil, nil, nil, nil,
			s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithMpMaxParts(maxParts),
			s3api.WithConcurrencyLimiter(maxConnections, maxConnections),
			s3api.WithHealth("/health"), s3api.WithOnListen(func() { close(up) }))
		if err != nil {
			return nil, "", err
		}
		failed := make(chan error, 1)
		go func() { failed <- srv.ServeMultiPort([]string{addr}) }()
		select {
		case <-up:
			go func() { ended <- <-failed }()
			return srv, addr, nil
		case err := <-failed:
			if port != "0" || try == bindTries || !errors.Is(err, syscall.EADDRINUSE) {
				return nil, "", fmt.Errorf("listen on %s: %w", addr, err)
			}
		}
	}
}
