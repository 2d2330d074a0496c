package compilation

import "errors"

// Config is how the stage behaves. Start from [Defaults].
type Config struct {
	Hands int    `koanf:"hands" help:"sites in hand at once in this process; 0: the stage's default"`
	Temp  string `koanf:"temp"  help:"folder for databases under construction, on a disk with room for the largest; empty: the system's"`
}

// Defaults are the settings that nobody has changed.
func Defaults() Config { return Config{} }

// Validate reports what is wrong with the settings.
func (c *Config) Validate() error {
	if c.Hands < 0 {
		return errors.New("compilation.hands must not be negative")
	}
	return nil
}
