//go:build race

package pdf

// shadow is how many times more memory a process takes: the race detector
// keeps a shadow of it all.
const shadow = 8
