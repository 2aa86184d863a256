import { describe, expect, it } from 'vitest'

import { Client, fileOf, half, inflated, open, Queue, WireError, type Source } from '../src/wire'
import { envelope } from './envelope'

describe('the envelope', () => {
  it('gives back every kind of array', () => {
    const { header, arrays } = open(envelope({ share: 0.5, name: 'ü' }, [
      { name: 'a', dtype: 'float32', shape: [2], data: Float32Array.of(1.5, NaN) },
      { name: 'b', dtype: 'int32', shape: [3], data: Int32Array.of(-1, 0, 7) },
      { name: 'c', dtype: 'uint8', shape: [3], scale: 0.5, zero: -1, missing: true, data: Uint8Array.of(0, 4, 255) },
      { name: 'd', dtype: 'float16', shape: [3], data: Uint16Array.of(0x3c00, 0xc000, 0x7e00) },
    ]))
    expect(header.share).toBe(0.5)
    expect(header.name).toBe('ü')
    expect([...arrays.a!.values]).toEqual([1.5, NaN])
    expect([...arrays.b!.values]).toEqual([-1, 0, 7])
    expect([...arrays.c!.values]).toEqual([-1, 1, NaN])
    expect([...arrays.d!.values]).toEqual([1, -2, NaN])
  })
  it('refuses what is none', () => expect(() => open(new ArrayBuffer(16))).toThrow(WireError))
})

describe('float16', () => {
  it('knows its least, its greatest and its odd numbers', () => {
    expect(half(0x0001)).toBe(2 ** -24)
    expect(half(0x7bff)).toBe(65504)
    expect(half(0xfc00)).toBe(-Infinity)
    expect(half(0x3555)).toBeCloseTo(1 / 3, 3)
    expect(Object.is(half(0x8000), -0)).toBe(true)
  })
})

describe('an export', () => {
  it('names files by path, without what is usual', () => {
    expect(fileOf('api/traces/x/points', { axes: 'all', space: 'sphere' }, 'bin')).toBe('api/traces/x/points.bin')
    expect(fileOf('api/traces/x/points', { axes: 'all', space: 'raw' }, 'bin')).toBe('api/traces/x/points.raw.bin')
    expect(fileOf('api/traces/x/weights/0/1', { kind: 'reversed' }, 'bin')).toBe('api/traces/x/weights/0/1.reversed.bin')
  })
  it('is inflated where it is gzip, and left alone where not', async () => {
    const plain = new TextEncoder().encode('RHEO and more')
    const packed = await new Response(new Blob([plain]).stream().pipeThrough(new CompressionStream('gzip'))).arrayBuffer()
    expect(new Uint8Array(await inflated(packed))).toEqual(plain)
    expect(new Uint8Array(await inflated(plain.slice().buffer))).toEqual(plain)
  })
})

it('a queue runs so many at a time, in order, and goes on after a failure', async () => {
  const queue = new Queue(2)
  const ends: (() => void)[] = []
  const begun: number[] = []
  const work = (at: number) => queue.run(() => new Promise<number>((go, fail) => (begun.push(at), ends.push(() => (at === 0 ? fail(new Error('no')) : go(at))))))
  const all = Promise.allSettled([0, 1, 2, 3].map(work))
  await Promise.resolve()
  expect(begun).toEqual([0, 1])
  ends[0]!()
  await new Promise((go) => setTimeout(go))
  expect(begun).toEqual([0, 1, 2])
  ends[1]!()
  ends[2]!()
  await new Promise((go) => setTimeout(go))
  ends[3]!()
  expect((await all).map((one) => one.status)).toEqual(['rejected', 'fulfilled', 'fulfilled', 'fulfilled'])
})

describe('the client', () => {
  const source = (answers: (path: string) => ArrayBuffer): Source & { asked: string[] } => {
    const asked: string[] = []
    return { live: true, asked, read: async (path) => (asked.push(path), answers(path)), ask: async () => ({}) }
  }
  it('asks for an analysis once, and again only after a failure', async () => {
    let fail = true
    const from = source(() => {
      if (fail) throw new WireError('not yet')
      return envelope({ pictures: [{ title: 't', caption: '', panels: [{ marks: [{ mark: 'lines' }] }] }] }, [])
    })
    const client = new Client(from)
    await expect(client.analysis('x', 'energy')).rejects.toThrow('not yet')
    fail = false
    const answer = await client.analysis('x', 'energy')
    expect(await client.analysis('x', 'energy')).toBe(answer)
    expect(from.asked.length).toBe(2)
    expect(answer.pictures[0]!.panels[0]!.marks[0]!.mark).toBe('line')
  })
  it('says why a text has no answer', async () => {
    const client = new Client(source(() => envelope({ name: 'clusters', reason: 'too short' }, [])))
    await expect(client.analysis('x', 'clusters')).rejects.toThrow('too short')
  })
  it('knows no star where its place is unknown', async () => {
    const points = { name: 'points', dtype: 'float32', shape: [1, 1, 3], data: Float32Array.of(1, 2, 3) }
    const star = { name: 'star', dtype: 'float32', shape: [3], data: Float32Array.of(NaN, NaN, NaN) }
    const got = await new Client(source(() => envelope({ share: 1, shares: [1, 0, 0] }, [points, star]))).points('x', 'all', 'raw')
    expect(got.star).toBeNull()
    expect([...got.points]).toEqual([1, 2, 3])
  })
})
