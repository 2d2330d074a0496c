package ocr

import (
	"errors"

	"github.com/reeve-pipeline/reeve/pkg/model"
	"github.com/reeve-pipeline/reeve/pkg/raster"
	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config is how the stage behaves. Start from [Defaults].
type Config struct {
	Hands           int               `koanf:"hands"            help:"page ranges in hand at once in this process, each with a session of its own; 0: the stage's default"`
	Model           string            `koanf:"model"            help:"name of the model that reads lines"`
	Models          string            `koanf:"models"           help:"folder with the models' files, and manifests of models of your own; empty: where scripts/models puts them"`
	Library         string            `koanf:"library"          help:"path of libonnxruntime; empty: the one in the folder of models"`
	Provider        string            `koanf:"provider"         help:"what to compute on: cpu, cuda or tensorrt"`
	ProviderOptions map[string]string `koanf:"provider_options" help:"the provider's own options, such as device_id=0"`
	Threads         int               `koanf:"threads"          help:"threads of one session; more sessions make better use of cores"`
	BeamBelow       float64           `koanf:"beam_below"       help:"confidence, 0 to 1, below which a line is read again by beam search; 0: none is"`
	BeamWidth       int               `koanf:"beam_width"       help:"readings that the beam search keeps at a time"`
	Memory          service.Size      `koanf:"memory"           help:"memory for decoded pages, of all hands together"`
	MaxPixels       int64             `koanf:"max_pixels"       help:"most pixels that a page may have"`
}

// Defaults are the settings that nobody has changed.
func Defaults() Config {
	return Config{
		Model: model.DefaultOCR, Provider: "cpu", Threads: 1, BeamWidth: 32,
		Memory: 256 << 20, MaxPixels: raster.Defaults().MaxPixels,
	}
}

// Validate reports everything that is wrong with the settings, joined.
func (c *Config) Validate() error {
	var errs []error
	if c.Hands < 0 {
		errs = append(errs, errors.New("ocr.hands must not be negative"))
	}
	if c.Threads < 0 {
		errs = append(errs, errors.New("ocr.threads must not be negative"))
	}
	if c.BeamBelow < 0 || c.BeamBelow > 1 {
		errs = append(errs, errors.New("ocr.beam_below must be from 0 to 1"))
	}
	if c.BeamWidth < 1 {
		errs = append(errs, errors.New("ocr.beam_width must be above 0"))
	}
	if c.Memory <= 0 {
		errs = append(errs, errors.New("ocr.memory must be above 0"))
	}
	if c.MaxPixels <= 0 {
		errs = append(errs, errors.New("ocr.max_pixels must be above 0"))
	}
	return errors.Join(errs...)
}

// limits are those of one page.
func (c *Config) limits() raster.Limits {
	l := raster.Defaults()
	l.MaxPixels = c.MaxPixels
	return l
}
