// Command reeve runs Reeve and speaks to a running one.
package main

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"

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
			os.Exit(s3d.Main(os.Args[2:]))
		case reeve.ServicesCommand:
			os.Args = slices.Delete(os.Args, 1, 2)
			os.Exit(service.Main("reeve", reeve.Services()...))
		}
	}
	os.Exit(run())
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
		Name: os.Args[0], Args: os.Args[1:], Environ: os.Environ(), Version: service.Version(),
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
