// Command deploy runs the deploy stage until it is told to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/deploy"
)

func main() { os.Exit(service.Main(deploy.Name, deploy.Wire)) }
