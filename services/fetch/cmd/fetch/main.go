// Command fetch runs the fetch stage until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/fetch"
)

func main() { os.Exit(service.Main(fetch.Name, fetch.Wire)) }
