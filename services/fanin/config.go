package fanin

import "fmt"

// Config are the settings of fan-in.
type Config struct {
	// Partitions are the partitions of outcomes that this process reads; empty:
	// all. Give each process its own, so that one run is counted by one of them.
	Partitions []int `koanf:"partitions" help:"partitions of outcomes to read, such as 0,1; default all"`
}

// Validate reports what is wrong with the settings.
func (c Config) Validate() error {
	for _, p := range c.Partitions {
		if p < 0 {
			return fmt.Errorf("partition %d: partitions count from 0", p)
		}
	}
	return nil
}
