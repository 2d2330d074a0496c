// Command reduce runs the reduce stage until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/reduce"
)

func main() { os.Exit(service.Main(reduce.Name, reduce.Wire)) }
