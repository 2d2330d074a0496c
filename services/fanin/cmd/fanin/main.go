// Command fanin counts outcomes and hands out what follows, until it is told
// to stop.
package main

import (
	"os"

	"github.com/reeve-pipeline/reeve/pkg/service"
	"github.com/reeve-pipeline/reeve/services/fanin"
)

func main() { os.Exit(service.Main(fanin.Name, fanin.Wire)) }
