// Command gateway serves the API until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/gateway"
)

func main() { os.Exit(service.Main(gateway.Name, gateway.Wire)) }
