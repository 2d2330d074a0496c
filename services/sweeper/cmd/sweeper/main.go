// Command sweeper brings lost work back until it is told to stop, or once.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/sweeper"
)

func main() { os.Exit(service.Main(sweeper.Name, sweeper.Wire)) }
