package gateway

import (
	"fmt"
	"net"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/service"
)

// Config holds the gateway's settings, under the prefix "gateway".
type Config struct {
	Addr  string         `koanf:"addr" help:"address the API listens on, host:port"`
	Token service.Secret `koanf:"token" help:"bearer token that every request must carry; needed unless addr is a loopback address"`
	Cache string         `koanf:"cache" help:"folder for copies of the published databases; a temporary one when empty"`
	Poll  time.Duration  `koanf:"poll" help:"time between two looks at a watched run"`
}

// Defaults returns the settings that hold when nothing else is said.
func Defaults() Config {
	return Config{Addr: "127.0.0.1:8480", Poll: 300 * time.Millisecond}
}

// Validate reports an API that would be open to everybody.
func (c *Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Addr)
	if err != nil {
		return fmt.Errorf("gateway.addr %q: give host:port, such as 127.0.0.1:8480", c.Addr)
	}
	if !loopback(host) && c.Token == "" {
		return fmt.Errorf("gateway.addr %s can be reached from other machines: set gateway.token, or listen on 127.0.0.1", c.Addr)
	}
	if c.Poll <= 0 {
		return fmt.Errorf("gateway.poll %v must be positive", c.Poll)
	}
	return nil
}

// loopback reports whether a host's name or address can only be this machine.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
