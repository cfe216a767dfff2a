package plane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// admin is the user that may do everything.
const admin = "admin"

// masters may do everything, whatever RBAC says (Kubernetes' own rule).
const masters = "system:masters"

// writePKI makes a plane's authority, the API server's certificate, the key that
// signs service accounts' tokens, and the kubeconfigs of the components and of
// the administrator. What is there already stays: users hold certificates.
func writePKI(dir, url string) error {
	if _, err := os.Stat(filepath.Join(dir, "sa.pub")); err == nil {
		return nil
	}
	key, err := newKey()
	if err != nil {
		return err
	}
	now := time.Now()
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubetest"}, NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return fmt.Errorf("make the authority: %w", err)
	}
	if err := errors.Join(writePEM(dir, "ca.crt", "CERTIFICATE", der), writeKey(dir, "ca.key", key)); err != nil {
		return err
	}
	ca, err := readAuthority(dir)
	if err != nil {
		return err
	}
	crt, crtKey, err := ca.issue(pkix.Name{CommonName: APIServer}, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return err
	}
	if err := errors.Join(writePEM(dir, "apiserver.crt", "CERTIFICATE", crt), writeKey(dir, "apiserver.key", crtKey)); err != nil {
		return err
	}
	for _, u := range []struct {
		file, name string
		groups     []string
	}{
		{admin, admin, []string{masters}},
		{ControllerManager, "system:" + ControllerManager, nil},
		{Scheduler, "system:" + Scheduler, nil},
		{Kwok, Kwok, []string{masters}},
	} {
		if _, err := ca.kubeconfig(dir, url, u.file, u.name, u.groups); err != nil {
			return err
		}
	}
	return writeTokenKey(dir)
}

// writeTokenKey makes the key that signs service accounts' tokens.
func writeTokenKey(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("make the tokens' key: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return fmt.Errorf("make the tokens' key: %w", err)
	}
	return errors.Join(writePEM(dir, "sa.key", "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key)), writePEM(dir, "sa.pub", "PUBLIC KEY", pub))
}

// userShape is what a user's name may be: it is a file's name too.
var userShape = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,98}[a-z0-9])?$`)

// WriteUser makes a user of the plane whose state is in dir and returns the path
// of its kubeconfig. A new user has no rights but those of its groups. The name is
// of lower case letters, digits, dots and dashes, at most 100; one that exists
// already is made anew, and its old certificate holds as well.
func WriteUser(dir, name string, groups []string) (string, error) {
	if !userShape.MatchString(name) {
		return "", fmt.Errorf("make a user: name %q must match %s", name, userShape)
	}
	pki := filepath.Join(dir, "pki")
	ca, err := readAuthority(pki)
	if err != nil {
		return "", err
	}
	url, err := os.ReadFile(filepath.Join(pki, "url"))
	if err != nil {
		return "", fmt.Errorf("make user %s: %w", name, err)
	}
	return ca.kubeconfig(pki, string(url), name, name, groups)
}

// authority signs certificates.
type authority struct {
	crt *x509.Certificate
	pem []byte // of crt
	key *ecdsa.PrivateKey
}

func readAuthority(dir string) (*authority, error) {
	crt, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	cb, _ := pem.Decode(crt)
	kb, _ := pem.Decode(key)
	if cb == nil || kb == nil {
		return nil, fmt.Errorf("read the authority: %s holds no PEM", dir)
	}
	a := &authority{pem: crt}
	if a.crt, err = x509.ParseCertificate(cb.Bytes); err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	if a.key, err = x509.ParseECPrivateKey(kb.Bytes); err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	return a, nil
}

// issue makes a certificate; a server's holds for loopback and for the names that
// pods know the API server by.
func (a *authority) issue(subject pkix.Name, usage x509.ExtKeyUsage) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = newKey(); err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, fmt.Errorf("make a certificate's number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: a.crt.NotBefore, NotAfter: a.crt.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{usage},
	}
	if usage == x509.ExtKeyUsageServerAuth {
		t.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
		t.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback, net.IPv4(10, 0, 0, 1)}
	}
	if der, err = x509.CreateCertificate(rand.Reader, t, a.crt, &key.PublicKey, a.key); err != nil {
		return nil, nil, fmt.Errorf("make certificate of %s: %w", subject.CommonName, err)
	}
	return der, key, nil
}

// kubeconfig writes one for a user with a certificate of its own.
func (a *authority) kubeconfig(dir, url, file, user string, groups []string) (string, error) {
	crt, key, err := a.issue(pkix.Name{CommonName: user, Organization: groups}, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return "", err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", fmt.Errorf("make key of %s: %w", user, err)
	}
	b64 := base64.StdEncoding.EncodeToString
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: kubetest, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: %q, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: kubetest, context: {cluster: kubetest, user: %q}}]
current-context: kubetest
`, url, b64(a.pem), user, b64(encode("CERTIFICATE", crt)), b64(encode("EC PRIVATE KEY", keyDER)), user)
	path := filepath.Join(dir, file+".kubeconfig")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write kubeconfig of %s: %w", user, err)
	}
	return path, keepURL(dir, url)
}

// keepURL keeps the API server's address for the users that are made later. Several
// are made at once, and none may read half of it.
func keepURL(dir, url string) error {
	path := filepath.Join(dir, "url")
	if b, err := os.ReadFile(path); err == nil && string(b) == url {
		return nil
	}
	temp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.WriteFile(temp, []byte(url), 0o600); err != nil {
		return fmt.Errorf("keep the API server's address: %w", err)
	}
	if err := os.Rename(temp, path); err != nil {
		return fmt.Errorf("keep the API server's address: %w", err)
	}
	return nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return key, nil
}

func writeKey(dir, name string, key *ecdsa.PrivateKey) error {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return writePEM(dir, name, "EC PRIVATE KEY", der)
}

func writePEM(dir, name, kind string, der []byte) error {
	if err := os.WriteFile(filepath.Join(dir, name), encode(kind, der), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
