package cli

import (
	"regexp"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// separate is the value of a flag that may stand without one, such as --watch. For pflag the word
// after such a flag is an argument; people mean it as the flag's value.
type separate struct {
	pflag.Value
	flags *pflag.FlagSet
	name  string
	last  map[int]*separate // of all such flags, the last one without a value, by the number of arguments before it
}

// Set notes where the flag stands if it has no value.
func (s *separate) Set(text string) error {
	at := s.flags.NArg()
	if delete(s.last, at); text == s.flags.Lookup(s.name).NoOptDefVal {
		s.last[at] = s
	}
	return s.Value.Set(text)
}

// Separate lets the value of a flag that may stand without one be a word of its own: `--watch 1s`
// is --watch=1s. A number, with or without a unit, is a value, unless isArgument says that it is an
// argument. nil means that it never is one. An error says what is wrong with the value. Call
// Separate once the command has its flags, Args and RunE.
func Separate(cmd *cobra.Command, isArgument func(cmd *cobra.Command, word string) bool, names ...string) {
	last := map[int]*separate{}
	for _, name := range names {
		f := cmd.Flags().Lookup(name)
		f.Value = &separate{Value: f.Value, flags: cmd.Flags(), name: name, last: last}
	}
	check, run := cmd.Args, cmd.RunE
	var rest []string
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		rest = nil
		for i, word := range args {
			s, dash := last[i], cmd.Flags().ArgsLenAtDash() // every word behind -- is an argument
			if s == nil || dash >= 0 && i >= dash || !number().MatchString(word) || isArgument != nil && isArgument(cmd, word) {
				rest = append(rest, word)
			} else if err := s.Value.Set(word); err != nil {
				return Usagef("--%s: %q: %v", s.name, word, err)
			}
		}
		return check(cmd, rest)
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return run(cmd, rest) }
}

// number matches the values of such flags: 50%, 2h, 1h30m, and also 50, which lacks its unit.
func number() *regexp.Regexp { return regexp.MustCompile(`^([0-9]+(\.[0-9]+)?(%|[A-Za-zµ]{0,2}))+$`) }
