//go:build !race

package pdf

// shadow is how many times more memory a process takes than it should.
const shadow = 1
