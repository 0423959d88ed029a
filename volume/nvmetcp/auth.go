package nvmetcp

import "fmt"

// authenticate answers the target's wish for authentication, which is in the result of Connect (Fabrics, 3.3:
// AUTHREQ).
func authenticate(_ *queue, _ *Options, result uint32) error {
	if result&authRequired != 0 {
		return fmt.Errorf("%w: the target wants authentication (DH-HMAC-CHAP)", ErrRefused)
	}
	return nil
}

const authRequired = 1<<17 | 1<<18 // ATR and ASCR
