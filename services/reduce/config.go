package reduce

import "errors"

// Config is how the stage behaves. Start from [Defaults].
type Config struct {
	Hands int `koanf:"hands" help:"documents in hand at once in this process; 0: the stage's default"`
}

// Defaults are the settings that nobody has changed.
func Defaults() Config { return Config{} }

// Validate reports what is wrong with the settings.
func (c *Config) Validate() error {
	if c.Hands < 0 {
		return errors.New("reduce.hands must not be negative")
	}
	return nil
}
