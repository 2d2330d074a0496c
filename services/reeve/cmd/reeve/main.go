// Command reeve runs Reeve and speaks to a running one.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reeve-pipeline/reeve/pkg/pdf"
	"github.com/reeve-pipeline/reeve/pkg/s3d"
	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/reeve"
)

func main() {
	pdf.ChildMain()
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case reeve.S3Command:
			os.Exit(serveS3(os.Args[2:]))
		case reeve.ServicesCommand:
			os.Args = slices.Delete(os.Args, 1, 2)
			os.Exit(service.Main("reeve", reeve.Services()...))
		}
	}
	os.Exit(run())
}

// lastRequests is how long requests to S3 in hand may take when the parent,
// whose requests they are, has stopped.
const lastRequests = 2 * time.Second

// serveS3 is the S3 server, until the parent closes standard input. The server
// would then wait for connections that clients keep open without a request.
func serveS3(args []string) int {
	r, w, err := os.Pipe()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	parent := os.Stdin
	os.Stdin = r
	go func() {
		_, _ = io.Copy(io.Discard, parent) // ends with the parent, however that ends
		_ = w.Close()
		<-time.After(lastRequests)
		os.Exit(0)
	}()
	return s3d.Main(args)
}

// run stops the command at the first signal, and the process at the second.
func run() int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		cancel()
		<-signals
		os.Exit(130)
	}()
	return reeve.Run(ctx, reeve.Process{
		Args: os.Args[1:], Environ: os.Environ(), Version: service.Version(),
		In: os.Stdin, InTTY: columns(os.Stdin) > 0,
		Out: reeve.Terminal{Writer: os.Stdout, Columns: columns(os.Stdout)},
		Err: reeve.Terminal{Writer: os.Stderr, Columns: columns(os.Stderr)},
	})
}

// columns returns the width of a terminal, 0 when the file is none.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return max(int(size.Col), 20)
}
