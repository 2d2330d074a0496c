// Command compilation runs the compilation stage until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/compilation"
)

func main() { os.Exit(service.Main(compilation.Name, compilation.Wire)) }
