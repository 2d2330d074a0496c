// Command lineextraction runs the line_extraction stage until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/lineextraction"
)

func main() { os.Exit(service.Main(lineextraction.Name, lineextraction.Wire)) }
