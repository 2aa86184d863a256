/** The latest responses by address. Panels that show the same matrix of a trace share one request, and a panel that is drawn again needs none. */
export class RecentResponses {
  private responses = new Map<string, Promise<unknown>>()
  constructor(private readonly limit: number) {}

  /** The response to an address. It is requested if it is not among the latest ones. */
  read<T>(address: string, request: () => Promise<T>): Promise<T> {
    const response = (this.responses.get(address) as Promise<T> | undefined) ?? request()
    this.responses.delete(address) // the newest is the last
    this.responses.set(address, response)
    response.catch(() => this.responses.delete(address))
    const [oldest] = this.responses.keys()
    if (this.responses.size > this.limit) this.responses.delete(oldest!)
    return response
  }
}
