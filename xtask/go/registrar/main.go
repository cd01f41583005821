// The registrar introduces a CSI driver to the kubelet, as the sidecar node-driver-registrar does.
//
// It asks the driver its name, serves the kubelet's plugin registration on a socket of that name in the directory
// that the kubelet watches, and answers with the path at which the kubelet finds the driver itself. It fails when the
// kubelet refuses the driver, so that whoever runs it starts it again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// A driver that has not answered after this long is given up.
const patience = 5 * time.Minute

type registrar struct {
	registration.UnimplementedRegistrationServer
	driver   string
	endpoint string
	refused  chan error
}

func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:              registration.CSIPlugin,
		Name:              r.driver,
		Endpoint:          r.endpoint,
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if status.PluginRegistered {
		log.Printf("the kubelet has registered %s", r.driver)
	} else {
		select {
		case r.refused <- fmt.Errorf("the kubelet refuses %s: %s", r.driver, status.Error):
		default: // one reason to end is enough
		}
	}
	return &registration.RegistrationStatusResponse{}, nil
}

func nameOfDriver(ctx context.Context, address string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	often := backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, MaxDelay: time.Second}
	connection, err := grpc.NewClient("unix:"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: often, MinConnectTimeout: 10 * time.Second}))
	if err != nil {
		return "", err
	}
	defer connection.Close()
	info, err := csi.NewIdentityClient(connection).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return "", fmt.Errorf("%s: %w", address, err)
	}
	if info.GetName() == "" {
		return "", fmt.Errorf("the driver at %s has no name", address)
	}
	return info.GetName(), nil
}

func run() error {
	address := flag.String("csi-address", "/run/csi/socket", "where the driver listens, as seen from here")
	endpoint := flag.String("kubelet-registration-path", "", "where the driver listens, as seen from the kubelet")
	directory := flag.String("plugin-registration-path", "/registration", "the directory that the kubelet watches")
	flag.Parse()
	if *endpoint == "" {
		return errors.New("--kubelet-registration-path is missing")
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	driver, err := nameOfDriver(ctx, *address)
	if err != nil {
		return err
	}
	socket := filepath.Join(*directory, driver+"-reg.sock")
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", socket) // removed again when the server stops
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	own := &registrar{driver: driver, endpoint: *endpoint, refused: make(chan error, 1)}
	registration.RegisterRegistrationServer(server, own)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err = <-own.refused:
	case err = <-ended:
	case <-ctx.Done():
	}
	server.GracefulStop()
	return err
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
